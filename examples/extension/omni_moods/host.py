"""A worker that answers each input with a struct, on the host."""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from omni import StageError
from omni.device import COMPLETED
from omni.payload import Payload
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage


@dataclass(slots=True, eq=False)
class Inputs:
    """A request. sources: producers that may still send. feeds: inputs in host memory, in order."""

    sources: set[str]
    feeds: deque[Feed] = field(default_factory=deque)
    paused: bool = False


class HostWorker(MailboxWorker[Inputs]):
    """takes: the type of its inputs."""

    takes: type[msgspec.Struct]

    def answer(self, payload: Payload) -> msgspec.Struct:
        """An exception fails the request, and no other."""
        raise NotImplementedError

    def open(self, message: Open) -> Inputs:
        return Inputs(set(message.inputs))

    def feed(self, request: Inputs, message: Feed) -> None:
        meta = message.payload.meta
        if not isinstance(meta, self.takes):
            given, wanted = type(meta).__name__, self.takes.__name__
            problem = f"a {given} is no {wanted}: have the edge's adapter drop it"
            raise StageError(self.name, "taking its input", problem)
        request.feeds.append(message)

    def end(self, request: Inputs, source: str) -> None:
        request.sources.discard(source)

    def pause(self, request: Inputs) -> None:
        request.paused = True

    def resume(self, request: Inputs) -> None:
        request.paused = False

    def drop(self, request: Inputs) -> None:
        while request.feeds:
            request.feeds.popleft().release(COMPLETED)

    def advance(self) -> bool:
        moved = False
        for request_id, request in list(self.requests.items()):
            try:
                moved |= self._serve(request_id, request)
            except Exception as error:
                self.fail(request_id, "answering its input", error)
                moved = True
        return moved

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests)}

    def counters(self) -> dict[str, int]:
        return {}

    def _serve(self, request_id: str, request: Inputs) -> bool:
        """Answers the inputs that have arrived, and ends the request after the last one."""
        moved = False
        while not request.paused and request.feeds and request.feeds[0].arrived:
            answer = self.answer(request.feeds[0].payload)
            self.outbox.append(Produced(request_id, Payload(answer), COMPLETED))
            request.feeds.popleft().release(COMPLETED)
            moved = True
        if request.sources or request.feeds:
            return moved
        self.finish(request_id, "stop", {})
        return True
