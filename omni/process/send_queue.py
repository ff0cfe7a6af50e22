"""Messages to the process of an engine, sent without waiting for it."""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from omni.ipc import ChannelClosed
from omni.process.messages import ToEngine


class ToProcess(Protocol):
    """The part of a `Channel` that a `SendQueue` uses."""

    def send(self, message: ToEngine, extra: int | None = None) -> bool: ...

    def offer(self, message: ToEngine, extra: int | None = None) -> bool: ...


class _Unsent(NamedTuple):
    """extra: a descriptor of its own."""

    message: ToEngine
    extra: int | None


class SendQueue:
    """Sends messages in order. Any thread.

    A process that reads nothing, such as a stopped one, fills the buffer of its socket. Then messages wait here, and a thread sends
    them: the callers hold locks that others need to end that process, and to serve requests of other ones.
    """

    def __init__(self, channel: ToProcess, on_error: Callable[[ToEngine, Exception], object]) -> None:
        """on_error: called in the thread for a message that has waited and cannot be sent, unless the channel is closed."""
        self._channel = channel
        self._on_error = on_error
        self._lock = threading.Lock()
        self._unsent: deque[_Unsent] = deque()
        """While there are any, a thread sends the first of them, and only then removes it: so a later message cannot pass it."""

    def send(self, message: ToEngine, extra: int | None = None) -> None:
        """Raises as `Channel.send` does, for a message that need not wait. extra: as there."""
        with self._lock:
            if not self._unsent and self._channel.offer(message, extra):
                return
            self._unsent.append(_Unsent(message, os.dup(extra) if extra is not None else None))
            if len(self._unsent) > 1:
                return
        thread = threading.Thread(target=self._send_all, name="omni-sender", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, or the system has no thread left
            self._send_all()

    def _send_all(self) -> None:
        left = True
        while left:
            first = self._unsent[0]
            try:
                self._channel.send(first.message, first.extra)
            except ChannelClosed:  # the later messages meet it too
                pass
            except Exception as error:
                self._on_error(first.message, error)
            with self._lock:
                self._unsent.popleft()
                left = bool(self._unsent)
            if first.extra is not None:
                with suppress(OSError):
                    os.close(first.extra)
