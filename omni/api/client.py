"""Front end and engine behind one door: what the synchronous and the asynchronous interface share."""

import atexit
import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from omni.api.ask import Ask
from omni.api.load import Loaded, prompt_limit
from omni.api.reaper import Reaper
from omni.api.ticket import Deliver, Started, Ticket
from omni.engine import EngineRequest
from omni.errors import InputError, OmniError, StageError
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
        self._compiler = loaded.compiler
        self._control_tokens, self._limit = loaded.options.control_tokens, prompt_limit(loaded.pipeline, loaded.engine)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="omni-frontend")
        self._tickets: dict[str, Ticket] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closing = False
        self._closed = threading.Event()
        self._engine.start()
        _OPEN.add(self)

    def check(self, ask: Ask, forms: bool) -> None:
        """Raises InputError for sampling that could never be done, and for a voice where there is none to choose.

        forms: whether they are compiled to see, which may take long.
        """
        if ask.voice is not None and not self.frontend.voices:
            raise InputError("voice", "is given, but this model has no voices to choose from", "leave it out")
        self._compiler.check(ask.sampling, ask.fields)
        try:
            self._engine.check(self._compiler.in_ids(ask.sampling), ask.fields)
        except InputError as error:
            raise self._compiler.in_texts(error, ask.sampling, ask.fields) from error
        if forms:
            self._compiler.check_forms(ask.sampling, ask.fields)

    def submit(self, messages: object, ask: Ask, delivers: Sequence[Deliver]) -> list[Ticket]:
        """Starts a request, which is prepared once and sampled as often as there are `delivers`; returns at once.

        What is wrong with `messages`, and forms in `ask.sampling` that do not compile, come as events. Raises StageError if closed.
        """
        with self._lock:
            if self._closing:
                raise StageError("engine", "taking a request", "it is closed")
            tickets = [Ticket(f"r{next(self._numbers)}", deliver, self._forget) for deliver in delivers]
            self._tickets |= {ticket.id: ticket for ticket in tickets}
            self._pool.submit(self._prepare, tickets, messages, ask)
        return tickets

    def text_decoder(self) -> TextDecoder | None:
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

    def _prepare(self, tickets: Sequence[Ticket], messages: object, ask: Ask) -> None:
        taken = time.perf_counter()
        if all(ticket.over for ticket in tickets):
            return
        try:
            front = self.frontend
            read = parse_messages(messages, sample_rate=front.sample_rate, names=front.takes_names)
            asked_of = (ask.modalities, ask.voice, ask.sampling, ask.cache_salt)
            chat = Chat(read, *asked_of, self._control_tokens, self._limit)
            prepared = front.prepare(chat)
            compiled = self._compiler.compile(ask.sampling, ask.fields, ask.samples)
            asked = {stage: compiled.sampling[stage] for stage in ask.sampling}
            self._engine.check(asked, ask.fields)
            rules = [compiled.rules() for _ in tickets]
        except OmniError as error:
            _cancel(tickets, error)
        except BaseException as error:  # a library's panic too: nobody looks at what a thread of the pool raises
            failure = StageError("frontend", "preparing the request", f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            _cancel(tickets, failure)
        else:
            started = Started(taken, prepared.prompt_tokens, compiled.after_stop)
            for sample, ticket in enumerate(tickets):
                request = EngineRequest(
                    ticket.id,
                    ask.modalities,
                    prepared.inputs,
                    prepared.edges,
                    compiled.sampling,
                    ask.priority,
                    ask.cache_salt,
                    sample,
                    rules[sample],
                )
                ticket.start(self._engine, request, started)

    def _forget(self, request_id: str) -> None:
        self._tickets.pop(request_id, None)


def _cancel(tickets: Sequence[Ticket], error: OmniError) -> None:
    for ticket in tickets:
        ticket.cancel(error)


_OPEN: set[Client] = set()


@atexit.register
def _close_all() -> None:
    """An engine must not be in the middle of a step while the interpreter goes away."""
    for client in list(_OPEN):
        client.close()
