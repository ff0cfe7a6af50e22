"""Stages that run few requests at a time: a request runs to its end, and its inputs are read only while it runs."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from omni.stage import MailboxWorker, Open

InputT = TypeVar("InputT")


@dataclass(slots=True, eq=False)
class Case(Generic[InputT]):
    """A request. inputs: those that are not wholly read. running: its inputs may be read. read: rows. tokens: rows of
    generated tokens. in_flight: rows that are being read. live: it is not over."""

    id: str
    sources: set[str]
    order: tuple[int, int]
    inputs: deque[InputT] = field(default_factory=deque)
    running: bool = False
    read: int = 0
    tokens: int = 0
    in_flight: int = 0
    live: bool = True
    paused: bool = False


class BoundedWorker(MailboxWorker[Case[InputT]]):
    """Subclasses feed, read and release. max_running: the most requests that run at a time."""

    def __init__(self, name: str, max_running: int) -> None:
        super().__init__(name)
        self._max_running = max_running

    def release(self, given: InputT) -> None:
        """No stage reads an input of a finished request."""
        raise NotImplementedError

    def usage(self) -> Mapping[str, int]:
        cases = list(self.requests.values())
        return {
            "requests": len(cases),
            "running": sum(case.running for case in cases),
            "leases": sum(len(case.inputs) for case in cases),
        }

    def open(self, message: Open) -> Case[InputT]:
        return Case(message.request_id, set(message.inputs), message.order)

    def end(self, request: Case[InputT], source: str) -> None:
        request.sources.discard(source)

    def pause(self, request: Case[InputT]) -> None:
        request.paused = True

    def resume(self, request: Case[InputT]) -> None:
        request.paused = False

    def drop(self, request: Case[InputT]) -> None:
        request.live = False
        while request.inputs:
            self.release(request.inputs.popleft())

    def start_requests(self) -> bool:
        """Of those that wait, in serving order. Returns whether there were any."""
        free = self._max_running - sum(case.running for case in self.requests.values())
        waiting = sorted((c for c in self.requests.values() if c.inputs and not c.running), key=lambda case: case.order)
        for case in waiting[:free]:
            case.running = True
        return bool(waiting[:free])

    def finish_read(self) -> bool:
        """Ends the requests that have read everything."""
        over = [c for c in self.requests.values() if not (c.sources or c.inputs or c.in_flight)]
        for case in over:
            self.finish(case.id, "stop" if case.read else "empty", {"rows": case.read})
        return bool(over)
