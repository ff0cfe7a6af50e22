"""The common part of stage workers: a mailbox that keeps one record per request."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from omni.device import COMPLETED
from omni.errors import (
    InputError,
    OmniError,
    ReturnedError,
    StageError,
    as_omni_error,
    exception_of,
    name_of,
    notes_of,
    printable_error,
    quoted,
    type_of,
)
from omni.sampling import SamplingParams
from omni.stage.messages import Abort, Done, Ended, Failed, Feed, Inbound, Open, Outbound, Pause, Resume
from omni.stage.returned import checked_moved
from omni.utils.log import safe_logger
from omni.utils.origin import caller, origin, with_place, worked_on

RequestT = TypeVar("RequestT")

_log = safe_logger(__name__)

_DOING: dict[type[Inbound], str] = {
    Feed: "taking its input",
    Ended: "taking its input",
    Pause: "pausing",
    Resume: "resuming",
}


class BatchPart(Protocol):
    """A request, or an item of one. isolated: its last batch failed, so it runs in a batch of its own."""

    isolated: bool


PartT = TypeVar("PartT", bound=BatchPart)


def together(parts: Sequence[PartT]) -> Sequence[PartT]:
    """The parts that may share a batch: all, or the first isolated one, if there is one."""
    return next(([part] for part in parts if part.isolated), parts)


class MailboxWorker(ABC, Generic[RequestT]):
    """Dispatches the inbox to `open`, `feed`, `end`, `pause`, `resume` and `drop`, then calls `advance`.

    Releases inputs that arrive after their request has finished, failed or been aborted here.

    phase_model: of the stage's phases, named in their errors. An error of a phase whose traceback has no code of a plugin, such as
    a shape that torch refuses, is attributed to the model. None without a model.
    """

    phase_model: object = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.inbox: deque[Inbound] = deque()
        self.outbox: deque[Outbound] = deque()
        self.requests: dict[str, RequestT] = {}
        """Records of the requests that are open here. Only this class adds and removes them."""
        self._open_ids: set[str] = set()
        self.retries = 0
        """Failed batches whose parts ran again, each alone. Part of every kind's `counters`."""

    @abstractmethod
    def open(self, message: Open) -> RequestT:
        """Returns a new request's record. Raises OmniError to refuse it; any other exception fails the request too."""

    @abstractmethod
    def feed(self, request: RequestT, message: Feed) -> None:
        """Keeps an input, and releases it after its last use. Raises OmniError to fail the request."""

    @abstractmethod
    def end(self, request: RequestT, source: str) -> None:
        """The inputs from `source` have ended."""

    @abstractmethod
    def pause(self, request: RequestT) -> None:
        """Starts no new work for the request until `resume`. Input is still taken, output under way emitted."""

    @abstractmethod
    def resume(self, request: RequestT) -> None:
        """Lets a paused request start work again."""

    @abstractmethod
    def drop(self, request: RequestT) -> None:
        """Frees the request's resources: rows, memory, leases. Called once per request, on any end.

        An exception closes the stage, whose memory is then in an unknown state.
        """

    @abstractmethod
    def advance(self) -> bool:
        """Polls events and enqueues possible work. Returns whether anything happened.

        An exception closes the stage: report the error of one request by `fail`.
        """

    @property
    def longest_prompt(self) -> int | None:
        """None; stages with prompts override it."""
        return None

    def check(self, sampling: SamplingParams, field: str) -> None:
        """Raises InputError for any parameter; stages that sample override it."""
        for name, value in msgspec.structs.asdict(sampling).items():
            if value is not None:
                raise InputError(f"{field}.{name}", f"stage {self.name!r} does not sample", "leave it out")

    def tick(self) -> bool:
        moved = self.empty_inbox()
        advanced = self.advance()
        moved |= advanced if advanced is True or advanced is False else checked_moved(advanced, "advance", self.advance)
        if len(self._open_ids) != len(self.requests):
            self._report_lost()
        return moved

    def poll(self) -> bool:
        """Does nothing by default. A stage whose steps take long to launch overrides it, beginning with `empty_inbox`."""
        return False

    def empty_inbox(self) -> bool:
        """Dispatches the messages. Returns whether there were any."""
        moved = bool(self.inbox)
        while self.inbox:
            self._dispatch(self.inbox.popleft())
        return moved

    def close(self) -> None:
        """Drops every request. Workers override it to free other memory. Idempotent."""
        for request_id in list(self.requests):
            self.drop(self._remove_record(request_id))

    def finish(self, request_id: str, reason: str, counts: dict[str, int], withheld: tuple[int, ...] = ()) -> None:
        """Finishes the request here: removes its record and sends `Done` to the orchestrator."""
        self.drop(self._remove_record(request_id))
        self.outbox.append(Done(request_id, reason, counts, withheld))

    def fail(self, request_id: str, doing: str, error: Exception) -> None:
        """Fails the request here. Errors of other types than omni's are wrapped with the stage's name. If `error` is not an
        exception, the message states it."""
        given: object = error
        words: object = doing
        if not isinstance(words, str):
            problem = f"fail got {type_of(words)} as doing, {quoted(words)}: give words, such as 'taking its input'"
            doing, error = (
                "failing a request",
                StageError(self.name, "failing a request", with_place(problem, caller())),
            )
        elif not issubclass(type(given), Exception):
            problem = f"fail got {type_of(given)} as its error, {quoted(given)}: give an exception"
            error = StageError(self.name, doing, with_place(problem, caller()))
        self.drop(self._remove_record(request_id))
        self.outbox.append(Failed(request_id, self._known(doing, error)))

    def _remove_record(self, request_id: str) -> RequestT:
        self._open_ids.discard(request_id)
        return self.requests.pop(request_id)

    def _report_lost(self) -> None:
        """Closes the stage: requests without a record would never end."""
        lost = sorted(self._open_ids - self.requests.keys()) or sorted(self.requests.keys() - self._open_ids)
        problem = f"`requests` was changed, which lost or added {quoted(lost)}: only `finish` and `fail` end a request"
        raise ReturnedError(problem, type(self))

    def retry_each(self, batch: Sequence[object], doing: str, error: Exception) -> bool:
        """Whether the parts of a failed batch run again, each alone, so that only the faulty part fails. True for a
        batch of several parts, which the caller then marks (`BatchPart.isolated`)."""
        if len(batch) > 1:
            self.retried(f"{doing} in a batch of {len(batch)}", error)
        return len(batch) > 1

    def retried(self, batch: str, error: Exception) -> None:
        """Counts and logs a retry. Retries also hide our own bugs: tests fail on them (`omni.testing.no_retries`)."""
        self.retries += 1
        _log.warning(
            "%s: %s failed; its parts run again, each alone", self.name, batch, exc_info=printable_error(error)
        )

    def _known(self, doing: str, error: Exception) -> OmniError:
        notes = notes_of(error)  # names the phase, see Device.launch
        # Without a line of a plugin: an error that was only made, or a method that does not take its arguments.
        code: object = type(self) if not origin(error) else None
        if notes and self.phase_model is not None and worked_on(error, self.phase_model):
            code = type(self.phase_model)
            doing = f"{doing} of {name_of(type(self.phase_model))}"
        return as_omni_error(self.name, ", ".join([doing, *notes]), error, code)

    def _dispatch(self, message: Inbound) -> None:
        if isinstance(message, Open):
            try:
                opened = self.open(message)
                if opened is None:
                    raise ReturnedError("open returned None: return the request's record", self.open)
                self.requests[message.request_id] = opened
                self._open_ids.add(message.request_id)
            except BaseException as error:
                self.outbox.append(Failed(message.request_id, self._known("opening a request", exception_of(error))))
            return
        request = self.requests.get(message.request_id)
        if request is None:
            if isinstance(message, Feed):
                message.release(COMPLETED)
            return
        if isinstance(message, Abort):
            self.drop(self._remove_record(message.request_id))
            return
        try:
            match message:
                case Feed():
                    self.feed(request, message)
                case Ended():
                    self.end(request, message.source)
                case Pause():
                    self.pause(request)
                case Resume():
                    self.resume(request)
        except BaseException as error:
            if message.request_id not in self.requests:
                raise  # it has ended twice
            self.fail(message.request_id, _DOING[type(message)], exception_of(error))
            if isinstance(message, Feed) and not message.acquired:
                message.release(COMPLETED)  # `feed` failed before it stored the input
