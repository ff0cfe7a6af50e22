"""The common part of stage workers that read code frames and emit samples."""

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from omni.device import COMPLETED, Device
from omni.errors import StageError
from omni.payload import AudioChunk, Payload
from omni.stage import Feed, MailboxWorker, Produced, StageUsage
from omni_frames.inputs import Arrival, read_arrival
from omni_frames.request import RequestT, RowQueue
from omni_frames.samples import SampleBatch, SampleRing
from omni_frames.store import FrameStore


class FrameModel(Protocol):
    """num_groups: codes per frame. sample_rate: in Hz."""

    @property
    def num_groups(self) -> int: ...
    @property
    def sample_rate(self) -> int: ...


class FrameWorker(MailboxWorker[RequestT]):
    """Copies frames from the producer's memory into its rows, and emits samples from the host. A stage kind implements
    `open`, `run` and `over`, and `read` if there are other inputs.

    device, stream: for its phases, launched in order. rows: the requests with a row. store: the frames in the rows.
    samples: output buffers. totals: `counters`; a stage kind counts "steps" and "frames" itself.
    """

    def __init__(
        self, name: str, device: Device, model: FrameModel, rows: int, capacity: int, most_samples: int, priority: int
    ) -> None:
        """rows: number of rows. capacity: waiting frames per row on the device. most_samples: maximum samples of one
        batch."""
        super().__init__(name)
        self.device = device
        self.stream = device.stream(name, priority=priority)
        self.rows = RowQueue[RequestT](rows)
        self.store = FrameStore(device, self.stream, rows, capacity, model.num_groups)
        self.samples = SampleRing(device, self.stream, device.stream(f"{name}-copy", priority=priority), most_samples)
        self.totals = {"steps": 0, "frames": 0, "samples": 0}
        self._groups = model.num_groups
        self._sample_rate = model.sample_rate
        self._in_flight: deque[SampleBatch[RequestT]] = deque()

    @abstractmethod
    def run(self) -> bool:
        """Launches the work that the rows are ready for; paused requests start none. Returns whether any work was
        launched."""

    @abstractmethod
    def over(self, request: RequestT) -> bool:
        """Whether all frames of the request are processed and all its samples emitted."""

    def read(self, request: RequestT, message: Feed) -> Arrival | None:
        """The frames of an input; None if it has none and is not needed later.

        Raises ValueError, which names the expected input, for any other input.
        """
        return read_arrival(message, self._groups)

    def usage(self) -> StageUsage:
        # Copies, since other threads call this while this one continues.
        requests, seated = list(self.requests.values()), list(self.rows.seated)
        return {
            "requests": len(requests),
            "rows": len(seated),
            "leases": sum(len(request.arrivals) for request in requests),
            "frames": sum(request.buffered for request in seated),
            "batches": len(self._in_flight),
        }

    def counters(self) -> Mapping[str, int]:
        """steps, frames, samples: number of launched ones. retries: failed batches whose requests ran again, each
        alone."""
        return {**self.totals, "retries": self.retries}

    def close(self) -> None:
        super().close()
        self._in_flight.clear()

    def feed(self, request: RequestT, message: Feed) -> None:
        try:
            arrival = self.read(request, message)
        except ValueError as error:
            message.release(COMPLETED)
            raise StageError(self.name, "taking its input", str(error)) from error
        if arrival is None:
            message.release(COMPLETED)
            return
        if request.row is None and not request.arrivals:
            self.rows.join(request)
        request.arrivals.append(arrival)

    def end(self, request: RequestT, source: str) -> None:
        request.open_sources.discard(source)
        if self.over(request):
            self._finish(request)

    def pause(self, request: RequestT) -> None:
        request.paused = True

    def resume(self, request: RequestT) -> None:
        request.paused = False

    def drop(self, request: RequestT) -> None:
        request.live = False
        self.rows.leave(request)
        while request.arrivals:
            request.arrivals.popleft().release()

    def advance(self) -> bool:
        moved = self._collect()
        moved |= self.rows.seat()
        moved |= self._take_frames()
        moved |= self.run()
        for request in [request for request in self.rows.seated if self.over(request)]:
            self._finish(request)
            moved = True
        return moved

    def launched(self, batch: SampleBatch[RequestT]) -> None:
        """Records a launched batch, whose samples are emitted when they arrive."""
        for request in batch.requests:
            request.in_flight += 1
        self._in_flight.append(batch)
        self.totals["samples"] += batch.samples * len(batch.requests)

    def isolate(self, batch: Sequence[RequestT], doing: str, error: Exception) -> None:
        """Handles a batch that failed and can be retried: its requests run again alone."""
        if not self.retry_each(batch, doing, error):
            self.fail(batch[0].id, doing, error)
            return
        for request in batch:
            request.alone = True

    def _take_frames(self) -> bool:
        moved, failed = self.store.take(self.rows.seated)
        for request, error in failed.items():
            self.fail(request.id, "taking its frames", error)
        return moved

    def _collect(self) -> bool:
        """Emits the samples that have arrived, oldest first."""
        moved = False
        while self._in_flight and self._in_flight[0].ready:
            batch = self._in_flight.popleft()
            for index, request in enumerate(batch.requests):
                if request.live:
                    self._give(request, batch, index)
            batch.host.release()
            moved = True
        return moved

    def _give(self, request: RequestT, batch: SampleBatch[RequestT], index: int) -> None:
        request.in_flight -= 1
        request.samples += batch.samples
        if batch.samples:
            chunk = AudioChunk(samples=batch.read(index), sample_rate=self._sample_rate)
            self.outbox.append(Produced(request.id, Payload(chunk), COMPLETED))

    def _finish(self, request: RequestT) -> None:
        counts = {"frames": request.done, "samples": request.samples}
        self.finish(request.id, "stop" if request.done else "empty", counts)
