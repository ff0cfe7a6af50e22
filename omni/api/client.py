"""Front end and engine behind one door: what the synchronous and the asynchronous interface share."""

import atexit
import itertools
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from omni.api.ask import Ask
from omni.api.load import Loaded
from omni.api.reaper import Reaper
from omni.api.ticket import Deliver, Started, Ticket
from omni.engine import EngineRequest
from omni.errors import OmniError, StageError
from omni.frontend.base import Chat, TextDecoder
from omni.frontend.messages import parse_messages
from omni.stage import StageUsage

# Some wait for downloads, so there are more than cores.
_THREADS = min(8, (os.cpu_count() or 1) + 2)


class Client:
    """Prepares requests in threads of its own, hands them to the engine, and keeps track of those that are not over."""

    def __init__(self, loaded: Loaded) -> None:
        self.pipeline = loaded.pipeline
        self.frontend = loaded.frontend
        self.reaper = Reaper()
        self._engine = loaded.engine
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="omni-frontend")
        self._tickets: dict[str, Ticket] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closing = False
        self._closed = threading.Event()
        self._engine.start()
        _OPEN.add(self)

    def submit(self, messages: object, ask: Ask, deliver: Deliver) -> Ticket:
        """Starts a request; returns at once. What is wrong with `messages` comes as an event.

        Raises StageError if closed.
        """
        with self._lock:
            if self._closing:
                raise StageError("engine", "taking a request", "it is closed")
            ticket = Ticket(f"r{next(self._numbers)}", deliver, self._forget)
            self._tickets[ticket.id] = ticket
            self._pool.submit(self._prepare, ticket, messages, ask)
        return ticket

    def text_decoder(self) -> TextDecoder:
        return self.frontend.text_decoder()

    def usage(self) -> Mapping[str, StageUsage]:
        """What each stage holds right now."""
        return self._engine.usage()

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """What each stage has done since the start."""
        return self._engine.counters()

    @property
    def idle(self) -> bool:
        """No request is under way, and no stage holds anything."""
        return not self._tickets and self._engine.idle

    def close(self) -> None:
        """Gives up what is under way, frees the stages and ends every thread. Idempotent."""
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            if not self.reaper.current:
                self._closed.wait()
            return
        try:
            for ticket in list(self._tickets.values()):
                ticket.cancel(StageError("engine", "closing", "the engine was closed"))
            self._pool.shutdown()
            self._engine.close()
        finally:
            self.reaper.close()
            _OPEN.discard(self)
            self._closed.set()

    def _prepare(self, ticket: Ticket, messages: object, ask: Ask) -> None:
        taken = time.perf_counter()
        if ticket.over:
            return
        try:
            chat = Chat(parse_messages(messages), ask.modalities, ask.voice, ask.sampling, ask.cache_salt)
            prepared = self.frontend.prepare(chat)
        except OmniError as error:
            ticket.cancel(error)
        except Exception as error:
            failure = StageError("frontend", "preparing the request", f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            ticket.cancel(failure)
        else:
            request = EngineRequest(
                ticket.id,
                ask.modalities,
                prepared.inputs,
                prepared.edges,
                ask.sampling,
                ask.priority,
                ask.cache_salt,
            )
            ticket.start(self._engine, request, Started(taken, prepared.prompt_tokens))

    def _forget(self, request_id: str) -> None:
        self._tickets.pop(request_id, None)


_OPEN: set[Client] = set()


@atexit.register
def _close_all() -> None:
    """An engine must not be in the middle of a step while the interpreter goes away."""
    for client in list(_OPEN):
        client.close()
