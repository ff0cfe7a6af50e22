"""Stages that are closed because their worker may be in an unknown state, and checks of the messages of workers."""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from omni.engine.values import is_number, is_text
from omni.errors import OmniError, ReturnedError, StageError, quoted, type_of
from omni.payload import Payload
from omni.stage import Done, Failed, Lease, Outbound, Produced, StageWorker
from omni.utils.interrupts import is_interrupt

_log = logging.getLogger(__name__)

_events: set[type] = set()
"""Classes of events that were found to be right: to ask a runtime protocol takes microseconds, for every payload."""


class StageFault(Exception):
    """A worker broke its contract outside of `tick`, or a connector its own. stage: to be closed."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(f"{stage}: {error}")
        self.stage = stage
        self.error = error


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
        self._problems.setdefault(stage, problem)  # the first one: others may follow from it

    def check(self, stages: Collection[str]) -> None:
        """Raises StageError if one of the stages is closed."""
        for stage, problem in self._problems.items():
            if stage in stages:
                raise StageError(stage, "running", f"it is closed since a fault, {problem}; open the model again")


def with_boxes(worker: StageWorker) -> StageWorker:
    """A new worker. Raises ReturnedError if its inbox or outbox is no deque."""
    boxes: dict[str, object] = {"inbox": worker.inbox, "outbox": worker.outbox}
    for name, box in boxes.items():
        if not isinstance(box, deque):
            problem = f"gave {type_of(worker)} whose {name} is {type_of(box)}: make it a collections.deque"
            raise ReturnedError(problem, type(worker))
    return worker


def discard_work(stage: str, worker: StageWorker, leases: Iterable[Lease]) -> None:
    """Closes the worker of a closed stage, and drops its messages. leases: those that it holds."""
    try:
        worker.close()
    except BaseException as error:  # a SystemExit or a library's panic too
        if is_interrupt(error):
            raise
        _log.exception("stage %r could not be closed after its fault", stage)
    for lease in list(leases):
        lease.revoke()
    # They may be anything by now.
    left: object = worker.outbox
    worker.inbox, worker.outbox = deque(), deque()
    for message in left if isinstance(left, Iterable) else ():
        if isinstance(message, Produced):
            message.close()


def next_message(stage: str, worker: StageWorker) -> Outbound:
    """Takes the next message of a worker out of its outbox. Raises StageFault for one that a stage must not send: nothing says
    which request it belongs to."""
    try:
        message: object = worker.outbox.popleft()
    except Exception as error:
        problem = f"the outbox is {type_of(worker.outbox)}, not the deque that it was: append to it"
        raise StageFault(stage, ReturnedError(problem, type(worker))) from error
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
        case Done(reason=str(), held=tuple(), counts=other):
            problem = f"the counts of a Done are {type_of(other)}: give a dict of numbers by name"
        case Done():
            problem = "the reason of a Done is no text, or its held tokens are no tuple"
        case Failed(error=other):
            problem = f"the error of a Failed is {type_of(other)}: give an exception"
        case other:
            problem = f"the outbox has {type_of(other)}: put a Produced, Done or Failed there"
    raise StageFault(stage, ReturnedError(problem, type(worker)))


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
