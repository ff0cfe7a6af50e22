"""The common part of stage workers that read code frames and emit samples."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from omni.device import COMPLETED, Device
from omni.errors import ReturnedError, StageError, exception_of
from omni.payload import AudioChunk, Payload
from omni.stage import Feed, MailboxWorker, Produced, StageUsage
from omni_frames.request import ArrivedFrames, RequestT, RowQueue, read_arrival
from omni_frames.store import FrameStore, SampleBatch, SampleRing


class FrameModel(Protocol):
    """num_groups: codes per frame. sample_rate: in Hz."""

    num_groups: int
    sample_rate: int


class FrameWorker(MailboxWorker[RequestT]):
    """Copies frames from the producer's memory into its rows, and emits samples from the host. A stage kind implements
    `open`, `run` and `finished`, and `read` if there are other inputs.

    device, stream: for its phases, launched in order. rows: the requests with a row. store: the frames in the rows.
    samples: output buffers. totals: `counters`; a stage kind counts "steps" and "frames" itself.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        model: FrameModel,
        *,
        rows: int,
        capacity: int,
        most_samples: int,
        priority: int,
    ) -> None:
        """capacity: waiting frames per row on the device. most_samples: maximum samples of one batch."""
        super().__init__(name)
        self.phase_model = model
        self.device = device
        self.stream = device.stream(name, priority=priority)
        self.rows = RowQueue[RequestT](rows)
        self.store = FrameStore(device, self.stream, rows=rows, capacity=capacity, groups=model.num_groups)
        self.samples = SampleRing(device, self.stream, device.stream(f"{name}-copy", priority=priority), most_samples)
        self.totals = {"steps": 0, "frames": 0, "samples": 0}
        self._groups = model.num_groups
        self._sample_rate = model.sample_rate
        self._in_flight: deque[SampleBatch[RequestT]] = deque()

    @abstractmethod
    def run(self) -> bool:
        """Launches the work that the rows are ready for; paused requests start none. Returns whether there was any."""

    @abstractmethod
    def finished(self, request: RequestT) -> bool:
        """Whether all frames of the request are processed and all its samples emitted."""

    def read(self, request: RequestT, message: Feed) -> ArrivedFrames | None:
        """The frames of an input; None if it has none and is not needed later. Raises ValueError, naming the expected input."""
        return read_arrival(message, self._groups)

    def usage(self) -> StageUsage:
        # Copies, since other threads call this while the engine's thread continues.
        requests, owners = list(self.requests.values()), list(self.rows.owners)
        return {
            "requests": len(requests),
            "rows": len(owners),
            "leases": sum(len(request.arrivals) for request in requests),
            "frames": sum(request.buffered for request in owners),
            "batches": len(self._in_flight),
        }

    def counters(self) -> Mapping[str, int]:
        """steps, frames, samples: launched ones. retries: failed batches whose requests ran again, each alone."""
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
        if self.finished(request):
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
        moved |= self.rows.allocate()
        taken, failed = self.store.take(self.rows.owners)
        for request, error in failed.items():
            self.fail(request.id, "taking its frames", error)
        moved |= taken
        moved |= self.run()
        for request in [request for request in self.rows.owners if self.finished(request)]:
            self._finish(request)
            moved = True
        return moved

    def run_batch(
        self,
        batch: Sequence[RequestT],
        doing: str,
        prepare: Callable[[], Callable[[], SampleBatch[RequestT] | None]],
        *,
        again: bool = False,
    ) -> bool:
        """Prepares a batch and launches it: `prepare()()`. Its samples are emitted when they arrive. Returns whether it
        was launched.

        The requests of a batch that could not be prepared run again, each alone. If the launch fails, they fail, since
        their rows may be half written; `again`: they run again in this case too.
        """
        launching = False
        try:
            launch = prepare()
            launching = True
            samples = launch()
        except BaseException as raised:
            error = exception_of(raised)
            retried = (again or not launching) and self.retry_each(batch, doing, error)
            for request in batch:
                if retried:
                    request.isolated = True
                else:
                    self.fail(request.id, doing, error)
            return False
        for request in batch:
            request.isolated = False
            request.in_flight += samples is not None
        if samples is not None:
            self._in_flight.append(samples)
            self.totals["samples"] += sum(samples.samples)
        return True

    def _collect(self) -> bool:
        moved = False
        while self._in_flight and self._in_flight[0].ready:
            batch = self._in_flight.popleft()
            for index, request in enumerate(batch.requests):
                if request.live:
                    self._emit(request, batch, index)
            batch.host.release()
            moved = True
        return moved

    def _emit(self, request: RequestT, batch: SampleBatch[RequestT], index: int) -> None:
        request.in_flight -= 1
        request.samples += batch.samples[index]
        if not batch.samples[index]:
            return
        samples = batch.read(index)
        if not np.isfinite(samples).all():
            # The row's state holds them too, so they would spread to all its later samples, and to stages behind this one.
            # The engine checks chunks for users again, of any kind of stage (`check_audio`): two reads of some kilobytes,
            # and the message here names the model.
            count = int((~np.isfinite(samples)).sum())
            model = type(self.phase_model)
            given = f"{count:,} of {len(samples):,} samples of {model.__name__}"
            problem = f"{given} are NaN or infinite: see the model, and its dtype"
            self.fail(request.id, "reading its samples", ReturnedError(problem, model))
            return
        chunk = AudioChunk(samples=samples, sample_rate=self._sample_rate)
        self.outbox.append(Produced(request.id, Payload(chunk), COMPLETED))

    def _finish(self, request: RequestT) -> None:
        counts = {"frames": request.done, "samples": request.samples}
        self.finish(request.id, "stop" if request.done else "empty", counts)
