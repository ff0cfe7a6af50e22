"""The queue of commands to the engine's loop, and the way of outputs from it."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from omni.engine.request import EngineCommand


class CommandQueue(Protocol):
    """Any thread calls `put` and `wake`; the loop's thread calls the others."""

    def put(self, command: EngineCommand) -> None:
        """Adds a command and wakes the loop."""
        ...

    def take(self) -> Sequence[EngineCommand]:
        """The commands that have arrived, in order. Does not wait."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether there are commands that were not taken."""
        ...

    def holds(self, request_id: str) -> bool:
        """Whether a request has arrived that `take` does not return yet."""
        ...

    def flush(self) -> None:
        """Sends the outputs that sinks have collected since the last call. Does not wait."""
        ...

    def wait(self, seconds: float | None = None) -> None:
        """Waits for a command, or for `wake` since the last call. seconds: the longest time; None for any."""
        ...

    def wake(self) -> None:
        """Makes a `wait` of the loop return."""
        ...

    def watch(self, descriptor: int) -> None:
        """Has a descriptor that is readable end a `wait`, each one until it is read."""
        ...


class LocalCommandQueue:
    """The queue for callers in the engine's process, whose sinks deliver outputs at once."""

    def __init__(self) -> None:
        self._commands: deque[EngineCommand] = deque()
        self._awake = threading.Event()

    def put(self, command: EngineCommand) -> None:
        self._commands.append(command)
        self._awake.set()

    def take(self) -> Sequence[EngineCommand]:
        taken = []
        while self._commands:
            taken.append(self._commands.popleft())
        return taken

    @property
    def waiting(self) -> bool:
        return bool(self._commands)

    def holds(self, request_id: str) -> bool:
        return False

    def flush(self) -> None:
        pass

    def wait(self, seconds: float | None = None) -> None:
        self._awake.wait(seconds)
        self._awake.clear()

    def wake(self) -> None:
        self._awake.set()

    def watch(self, descriptor: int) -> None:
        raise AssertionError("nothing comes from other processes to an engine in a thread")
