"""A stage worker that does nothing by itself: the test reads what it was told and says what it gives."""

from collections import deque

from omni.device import COMPLETED, Event
from omni.errors import OmniError
from omni.payload import Payload
from omni.stage import Abort, Done, Ended, Failed, Feed, Inbound, Open, Outbound, Pause, Produced, Resume


class FakeWorker:
    """Keeps every message. A request counts as held from `Open` to its end here.

    answer: given, with the end, to every request as it opens: for an engine that runs in a thread of its own.
    """

    longest_prompt = None

    def __init__(self) -> None:
        self.inbox: deque[Inbound] = deque()
        self.outbox: deque[Outbound] = deque()
        self.taken: list[Inbound] = []
        self.held: set[str] = set()
        self.closed = False
        self.broken: Exception | None = None
        self.answer: Payload | None = None

    def tick(self) -> bool:
        if self.broken is not None:
            raise self.broken
        moved = bool(self.inbox)
        while self.inbox:
            message = self.inbox.popleft()
            self.taken.append(message)
            if isinstance(message, Open):
                self.held.add(message.request_id)
                if self.answer is not None:
                    self.produce(message.request_id, self.answer)
                    self.done(message.request_id)
            if isinstance(message, Abort):
                self.held.discard(message.request_id)
                self.release(message.request_id)
        return moved

    def usage(self) -> dict[str, int]:
        return {"requests": len(self.held)}

    def counters(self) -> dict[str, int]:
        return {"messages": len(self.taken)}

    def close(self) -> None:
        self.closed = True
        self.held.clear()

    def produce(self, request_id: str, payload: Payload, ready: Event = COMPLETED) -> Produced:
        produced = Produced(request_id, payload, ready)
        self.outbox.append(produced)
        return produced

    def done(self, request_id: str, reason: str = "stop") -> None:
        self.held.discard(request_id)
        self.outbox.append(Done(request_id, reason, {"tokens": 1}))

    def fail(self, request_id: str, error: OmniError) -> None:
        self.held.discard(request_id)
        self.outbox.append(Failed(request_id, error))

    def opened(self, request_id: str) -> Open:
        """How the request was opened here."""
        (message,) = [m for m in self.taken if isinstance(m, Open) and m.request_id == request_id]
        return message

    def fed(self, request_id: str) -> list[Feed]:
        return [m for m in self.taken if isinstance(m, Feed) and m.request_id == request_id]

    def ended(self, request_id: str) -> list[str]:
        """The sources that have ended for the request."""
        return [m.source for m in self.taken if isinstance(m, Ended) and m.request_id == request_id]

    def told(self, request_id: str) -> list[type[Pause] | type[Resume]]:
        """When to stop and when to go on, in order."""
        return [type(m) for m in self.taken if isinstance(m, Pause | Resume) and m.request_id == request_id]

    def aborts(self, request_id: str) -> int:
        return sum(isinstance(m, Abort) and m.request_id == request_id for m in self.taken)

    def release(self, request_id: str, after: Event = COMPLETED) -> None:
        """Releases every lease that came for the request so far, once."""
        for message in self.fed(request_id):
            message.release(after)
        self.taken = [m for m in self.taken if not (isinstance(m, Feed) and m.request_id == request_id)]
