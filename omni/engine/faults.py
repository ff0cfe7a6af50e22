"""Stages that are closed because their worker may be in an unknown state, and checks of the messages of workers."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from omni.engine.values import is_number, is_text
from omni.errors import OmniError, ReturnedError, StageError, error_text, printable_error, quoted, type_of
from omni.payload import Payload
from omni.stage import Done, Failed, Inbound, Lease, Outbound, Produced, StageWorker
from omni.utils.interrupts import is_interrupt
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class StageFault(Exception):
    """A worker broke its contract outside of `tick`, or a connector its own. stage: to be closed."""

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(f"{stage}: {error_text(error)}")
        self.stage = stage
        self.error = error


def closed_after_error(stage: str) -> StageError:
    return StageError(stage, "running", "it was closed after an error")


class ClosedStages:
    """The stages of an engine that are closed, with the reason. Requests that need one of them are refused; others go on."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def __contains__(self, stage: object) -> bool:
        return stage in self._problems

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._problems))

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, stage: str, error: OmniError) -> None:
        """error: of its worker, or of an edge to it."""
        problem = error.problem if isinstance(error, StageError) and error.stage == stage else str(error)
        self._problems.setdefault(stage, problem)  # the first error: later ones may be its consequences

    def check(self, stages: Collection[str]) -> None:
        """Raises StageError if one of the stages is closed."""
        for stage, problem in self._problems.items():
            if stage in stages:
                raise StageError(stage, "running", f"it is closed after a fault, {problem}; open the model again")


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The inbox and the outbox of a worker. The engine takes them once, when the stage is started: if the worker replaces them,
    messages still pass through these, and its next tick reports the replacement (`check`)."""

    inbox: deque[Inbound]
    outbox: deque[Outbound]

    @classmethod
    def of(cls, worker: StageWorker) -> "Mailbox":
        """Takes the inbox and the outbox of a new worker. Raises ReturnedError if one of them is not a deque, or is a bounded
        deque, which drops messages."""
        mailbox = cls(worker.inbox, worker.outbox)
        for name, box in (("inbox", mailbox.inbox), ("outbox", mailbox.outbox)):
            given: object = box
            problem = f"gave {type_of(worker)} whose {name} is"
            if type(given) is not deque:
                raise ReturnedError(f"{problem} {type_of(given)}: make it a collections.deque", type(worker))
            if given.maxlen is not None:
                remedy = "which drops messages: leave maxlen out"
                raise ReturnedError(f"{problem} a deque of at most {given.maxlen}, {remedy}", type(worker))
        mailbox.check(worker)
        return mailbox

    def check(self, worker: StageWorker) -> None:
        """Raises ReturnedError if the worker has others now."""
        for name, own, box in (("inbox", self.inbox, worker.inbox), ("outbox", self.outbox, worker.outbox)):
            if box is not own:
                given = "another deque" if type(box) is deque else type_of(box)
                problem = f"the {name} is {given} now, not the one of the start, which the engine reads and writes"
                raise ReturnedError(f"{problem}: keep that, and append to it", type(worker))

    def cause_of(self, error: BaseException, worker: StageWorker) -> BaseException:
        """The cause of an error of the worker: that its inbox or outbox was replaced, or else the error itself."""
        try:
            self.check(worker)
        except ReturnedError as replaced:
            replaced.__cause__ = error
            return replaced
        except Exception:  # it has none now
            return error
        return error


def discard_work(stage: str, worker: StageWorker, mailbox: Mailbox, leases: Iterable[Lease]) -> None:
    """Closes the worker of a closed stage, and drops its messages. leases: those that it holds."""
    try:
        worker.close()
    except BaseException as error:  # a SystemExit or a library's panic too
        if is_interrupt(error):
            raise
        _log.error(
            "stage %r could not be closed after its fault: %s",
            stage,
            error_text(error),
            exc_info=printable_error(error),
        )
    for lease in list(leases):
        lease.revoke()
    for message in mailbox.outbox:
        if type(message) is Produced:  # the worker may have put any object there
            message.close()
    mailbox.inbox.clear()
    mailbox.outbox.clear()


def checked_message(message: object, worker: StageWorker) -> Outbound:
    """A message of an outbox. Raises ReturnedError for one that a stage must not send."""
    match message:
        case Produced(str(), Payload(meta=msgspec.Struct())):
            return message
        case Done(str(), str(), dict(), tuple()) | Failed(str(), Exception()):
            return message
        case Produced() | Done() | Failed() if type_of(message.request_id) != "a str":
            sent, given = type(message).__name__, type_of(message.request_id)
            problem = f"the request id of a {sent} is {given}: give that of its Open"
        case Produced(payload=Payload(meta=other)):
            problem = f"the meta of a payload is {type_of(other)}: give a msgspec.Struct"
        case Produced(payload=other):
            problem = f"the payload of a Produced is {type_of(other)}: give an omni.payload.Payload"
        case Done(reason=str(), withheld=tuple(), counts=other):
            problem = f"the counts of a Done are {type_of(other)}: give a dict of numbers by name"
        case Done():
            problem = "the reason of a Done is not text, or its withheld tokens are not a tuple"
        case Failed(error=other):
            problem = f"the error of a Failed is {type_of(other)}: give an exception"
        case other:
            problem = f"the outbox has {type_of(other)}: put a Produced, Done or Failed there"
    raise ReturnedError(problem, type(worker))


def checked_numbers(returned: object, worker: StageWorker, method: str) -> Mapping[str, int]:
    """The result of `usage` or `counters`. Raises ReturnedError unless it is a mapping of numbers of 64 bits by name."""
    problem = f"{method} returned {type_of(returned)}"
    if isinstance(returned, Mapping):
        numbers = dict(returned)
        if all(
            is_text(name) and type(number) is int and is_number(number) and number >= 0
            for name, number in numbers.items()
        ):
            return numbers
        problem = f"{method} returned {quoted(numbers)}"
    remedy = "return whole numbers by name, of 64 bits and not negative, such as {'requests': 0}"
    raise ReturnedError(f"{problem}: {remedy}", type(worker))
