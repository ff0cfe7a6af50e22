"""Drives one stage worker with hand-made messages, and acts as the orchestrator for its outputs."""

from collections.abc import Sequence

from omni.connector import Ref
from omni.device import COMPLETED, Device, Event, Stream
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.stage import Abort, Done, Ended, Failed, Feed, Lease, Open, Outbound, Pause, Produced, Resume, StageWorker
from omni.testing.stages.loan import lend

SOURCE = "frontend"


class StageDriver:
    def __init__(self, worker: StageWorker, stream: Stream) -> None:
        self.worker = worker
        self.produced: dict[str, list[Produced]] = {}
        self.ends: dict[str, Done | Failed] = {}
        self._stream = stream

    def open(
        self, *ids: str, sources: Sequence[str] = (SOURCE,), order: tuple[int, int] = (0, 0), cache_salt: str = ""
    ) -> None:
        self.worker.inbox.extend(
            Open(i, SamplingParams(), frozenset(sources), order=order, cache_salt=cache_salt) for i in ids
        )

    def feed(self, request_id: str, payload: Payload, ready: Event = COMPLETED) -> Ref:
        """Feeds a payload that a producer lends; returns the producer's ref."""
        ref, pending = lend(payload, ready)
        self.worker.inbox.append(Feed(request_id, payload, ready, Lease(pending, [payload])))
        return ref

    def feed_host(self, request_id: str, payload: Payload) -> None:
        """Feeds a payload as the front end does: host memory, no lease."""
        self.worker.inbox.append(Feed(request_id, payload, COMPLETED))

    def end(self, *ids: str, source: str = SOURCE) -> None:
        self.worker.inbox.extend(Ended(i, source) for i in ids)

    def pause(self, *ids: str) -> None:
        self.worker.inbox.extend(Pause(i) for i in ids)

    def resume(self, *ids: str) -> None:
        self.worker.inbox.extend(Resume(i) for i in ids)

    def abort(self, *ids: str) -> None:
        self.worker.inbox.extend(Abort(i) for i in ids)

    def tick(self) -> bool:
        moved = self.worker.tick()
        while self.worker.outbox:
            self._take(self.worker.outbox.popleft())
        return moved

    def settle(self, device: Device) -> None:
        """Ticks, and lets the device run, until no further progress occurs."""
        device.synchronize()
        while self.tick():
            device.synchronize()

    @property
    def held(self) -> dict[str, int]:
        """Resources that the worker still holds."""
        return {name: count for name, count in self.worker.usage().items() if count}

    def _take(self, message: Outbound) -> None:
        assert message.request_id not in self.ends, "a request has no output after its end"
        if isinstance(message, Produced):
            self.produced.setdefault(message.request_id, []).append(message)
            message.close()
        else:
            self.ends[message.request_id] = message


class FailingDriver(StageDriver):
    """Driver of a stage some of whose requests fail."""

    def error(self, request_id: str) -> str:
        """The error of the failed request."""
        end = self.ends[request_id]
        assert isinstance(end, Failed)
        return str(end.error)
