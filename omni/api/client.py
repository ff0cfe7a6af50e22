"""Front end and engine behind one door: what the synchronous and the asynchronous interface share."""

import atexit
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

from omni.api.ask import Ask
from omni.api.job import Job, read_question
from omni.api.load import Loaded, prompt_limit
from omni.api.owner import OwnerProcess
from omni.api.prepare import Preparer
from omni.api.request_queue import RequestQueue
from omni.api.serial_executor import SerialExecutor
from omni.api.ticket import Deliver, Ticket
from omni.errors import InputError, StageError, known
from omni.frontend.base import TextDecoder
from omni.media import Downloads
from omni.pipeline import FRONTEND
from omni.stage import StageUsage

_log = logging.getLogger(__name__)

_GRACE_SECONDS = 0.5
"""How long a close waits for threads that are in a library's hands. They are left to it after that."""


class Client:
    """Has requests prepared, hands them to the engine, and keeps track of those that are not over.

    Nothing happens before `start`. What changes anything is the executor's to do, so that Ctrl-C finds all of it done or nothing.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.pipeline = loaded.pipeline
        self.frontend = loaded.frontend
        self.executor = SerialExecutor()
        self.owner = OwnerProcess()
        self._engine = loaded.engine
        self._compiler = loaded.compiler
        self._media = loaded.options.media
        self._downloads = Downloads(self._media)
        limit = prompt_limit(loaded.pipeline, loaded.engine)
        preparer = Preparer(loaded.frontend, loaded.compiler, loaded.engine, loaded.options, limit)
        self._requests = RequestQueue(preparer, self._downloads, self.executor, loaded.limits)
        self._tickets: dict[str, Ticket] = {}
        self._numbers = itertools.count()
        self._closing = False
        self._shut_once = False
        self._failure: Exception | None = None

    def start(self) -> None:
        """Starts every thread. If it is interrupted, `close` ends those that were."""
        self.executor.start()
        self.executor.call(self._start)

    def _start(self) -> None:
        _OPEN.add(self)
        self._engine.start()
        self._requests.start()

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

    def check_open(self) -> None:
        """Raises ForkError in a forked process, StageError if it is closed."""
        self.owner.check("taking a request")
        if self._closing:
            raise StageError("engine", "taking a request", "it is closed")

    def job(self, messages: object, ask: Ask, delivers: Sequence[Deliver]) -> Job:
        """A request, which is prepared once and answered as often as there are `delivers`. Nobody else knows of it yet."""
        question = read_question(messages, ask, self._media, self.frontend.takes_names)
        return Job(question, [Ticket(f"r{next(self._numbers)}", deliver, self._over) for deliver in delivers])

    def submit(self, jobs: Sequence[Job]) -> None:
        """Starts requests; returns at once. What is wrong with one comes as an event, also that it is closed."""
        self._tickets.update({name: ticket for job in jobs for name, ticket in job.tickets.items()})
        self.executor.ask(partial(self._requests.join, jobs))

    def text_decoder(self) -> TextDecoder | None:
        return self.frontend.text_decoder()

    def usage(self) -> Mapping[str, StageUsage]:
        """What each stage holds right now, and what waits for them."""
        self.owner.check("asking for usage")
        waiting = {"requests": self._requests.waiting, "bytes": self._requests.held_bytes}
        return {**self._engine.usage(), FRONTEND: waiting}

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """What each stage has done since the start."""
        self.owner.check("asking for counters")
        return self._engine.counters()

    @property
    def idle(self) -> bool:
        """No request is under way, and no stage holds anything."""
        self.owner.check("asking for usage")
        return not self._tickets and self._engine.idle

    def close(self) -> None:
        """Gives up what is under way, frees the stages and ends every thread. Idempotent.

        Raises what went wrong, once: a timeline that cannot be written.
        Who is interrupted (Ctrl-C) while it waits has still closed it; another call waits for the rest. A no-op in a forked
        process.
        """
        if self.owner.forked:
            return
        self._closing = True
        self.executor.ask(self._shut)
        self.executor.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close_soon(self) -> None:
        """As `close`, without waiting. Safe in a finalizer."""
        if not self.owner.forked:
            self._closing = True
            self.executor.soon(self._shut_unseen)

    def _shut(self) -> None:
        if self._shut_once:
            return
        self._shut_once = True
        steps = (self._cancel_all, self._downloads.close, self._requests.close, self._engine.close, self._join_threads)
        try:
            for step in steps:
                try:
                    step()
                except BaseException as error:  # for the one who waits for it; the rest is closed all the same
                    if self._failure is None:
                        self._failure = error if isinstance(error, Exception) else known("engine", "closing", error)
                    else:
                        _log.error("a further part of the model could not be closed", exc_info=error)
        finally:
            self.executor.end()
            _OPEN.discard(self)

    def _cancel_all(self) -> None:
        for ticket in list(self._tickets.values()):
            ticket.cancel(StageError("engine", "closing", "the engine was closed"))

    def _join_threads(self) -> None:
        until = time.monotonic() + _GRACE_SECONDS
        self._requests.join_threads(lambda: until - time.monotonic())

    def _shut_unseen(self) -> None:
        self._shut()
        if self._failure is not None:
            _log.error("the model was not closed as it should be", exc_info=self._failure)

    def _over(self, ticket: Ticket) -> None:
        self._tickets.pop(ticket.id, None)
        self._requests.over(ticket)


_OPEN: set[Client] = set()


@atexit.register
def _close_all() -> None:
    """An engine must not be in the middle of a step while the interpreter goes away."""
    for client in list(_OPEN):
        try:
            client.close()
        except BaseException:  # the others run on otherwise, also if this is Ctrl-C
            _log.exception("a model was not closed as it should be")
