"""The stage worker: takes frames out of the producer's memory, decodes chunks, gives samples to the host."""

from collections import deque
from collections.abc import Iterable, Mapping

from omni.chunks import AudioChunk
from omni.device import COMPLETED, Device
from omni.errors import StageError
from omni.frames import FrameStore, RowQueue, read_arrival
from omni.payload import Payload
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage, release
from omni_vocoder.chunks import ChunkSizes
from omni_vocoder.decoder import MAX_IN_FLIGHT, Decoder, DecodeStep
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.options import VocoderOptions
from omni_vocoder.request import VocoderRequest


class VocoderWorker(MailboxWorker[VocoderRequest]):
    """Runs one vocoder."""

    def __init__(
        self, name: str, device: Device, model: VocoderModel[StateT], options: VocoderOptions, priority: int = 0
    ) -> None:
        super().__init__(name)
        stream = device.stream(name, priority=priority)
        copy_stream = device.stream(f"{name}-copy", priority=priority)
        rows = options.max_num_seqs
        self._sizes = ChunkSizes.of(options, model)
        self._sample_rate = model.sample_rate
        self._num_groups = model.num_groups
        self._rows = RowQueue[VocoderRequest](rows)
        self._store = FrameStore(device, stream, rows, self._sizes.capacity, model.num_groups)
        self._decoder = Decoder(device, stream, copy_stream, model, self._store, rows, self._sizes)
        self._in_flight: deque[DecodeStep] = deque()
        self._totals = {"steps": 0, "frames": 0, "samples": 0}

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures chunks of these numbers of rows. At start."""
        self._decoder.capture(sizes)

    def usage(self) -> StageUsage:
        return {
            "requests": len(self.requests),
            "rows": len(self._rows.seated),
            # Copies: other threads ask, while this one goes on.
            "leases": sum(len(request.arrivals) for request in list(self.requests.values())),
            "frames": sum(request.buffered for request in list(self._rows.seated)),
            "steps": len(self._in_flight),
        }

    def counters(self) -> Mapping[str, int]:
        return dict(self._totals)

    def close(self) -> None:
        for request_id in list(self.requests):
            self.drop(self.requests.pop(request_id))
        self._in_flight.clear()

    def open(self, message: Open) -> VocoderRequest:
        return VocoderRequest(message.request_id, set(message.inputs), message.rank)

    def feed(self, request: VocoderRequest, message: Feed) -> None:
        try:
            arrival = read_arrival(message, "vocoder", self._num_groups)
        except ValueError as error:
            release(message, COMPLETED)
            raise StageError(self.name, "taking its input", str(error)) from error
        if request.row is None and not request.arrivals:
            self._rows.join(request)
        request.arrivals.append(arrival)

    def end(self, request: VocoderRequest, source: str) -> None:
        request.open_sources.discard(source)
        if request.finished(self._sizes):
            self._finish(request)

    def pause(self, request: VocoderRequest) -> None:
        request.paused = True

    def resume(self, request: VocoderRequest) -> None:
        request.paused = False

    def drop(self, request: VocoderRequest) -> None:
        request.live = False
        self._rows.leave(request)
        while request.arrivals:
            request.arrivals.popleft().let_go()

    def advance(self) -> bool:
        moved = False
        while self._in_flight and self._in_flight[0].ready.done():
            self._collect(self._in_flight.popleft())
            moved = True
        moved |= self._rows.seat()
        moved |= self._take_frames()
        while len(self._in_flight) < MAX_IN_FLIGHT and self._decoder.ready and (batch := self._next_batch()):
            self._decode(batch)
            moved = True
        for request in [request for request in self._rows.seated if request.finished(self._sizes)]:
            self._finish(request)
            moved = True
        return moved

    def _take_frames(self) -> bool:
        moved, failed = self._store.take(self._rows.seated)
        for request, error in failed.items():
            self.fail(request.id, "taking its frames", error)
        return moved

    def _next_batch(self) -> list[VocoderRequest]:
        """Rows whose next chunk has the same shape; first chunks go before later ones, for they are waited for."""
        groups: dict[tuple[bool, int], list[VocoderRequest]] = {}
        for request in self._rows.seated:
            frames = request.next_chunk(self._sizes)
            if frames and not request.paused:
                if request.alone:
                    return [request]
                groups.setdefault((request.started, frames), []).append(request)
        return groups[min(groups, key=lambda key: key[0])] if groups else []

    def _decode(self, batch: list[VocoderRequest]) -> None:
        frames = batch[0].next_chunk(self._sizes)
        try:
            prepared = self._decoder.prepare(batch, frames, first=not batch[0].started)
        except Exception as error:
            self._isolate(batch, error)
            return
        try:
            step = self._decoder.launch(prepared)
        except Exception as error:
            # Their state may be half written, so they cannot be tried again one by one.
            for request in batch:
                self.fail(request.id, "decoding a chunk", error)
            return
        for request in batch:
            request.consume(frames, self._sizes.capacity)
        self._in_flight.append(step)
        for name, count in (("steps", 1), ("frames", frames * len(batch)), ("samples", step.samples * len(batch))):
            self._totals[name] += count

    def _isolate(self, batch: list[VocoderRequest], error: Exception) -> None:
        """After a failure that touched no state: each is tried again alone, and one that was alone fails."""
        if len(batch) == 1:
            self.fail(batch[0].id, "decoding a chunk", error)
        for request in batch:
            request.alone = True

    def _collect(self, step: DecodeStep) -> None:
        for index, request in enumerate(step.requests):
            if not request.live:
                continue
            request.in_flight = False
            request.frames += step.frames
            request.samples += step.samples
            if step.samples:
                chunk = AudioChunk(samples=step.read(index), sample_rate=self._sample_rate)
                self.outbox.append(Produced(request.id, Payload(chunk), COMPLETED))

    def _finish(self, request: VocoderRequest) -> None:
        counts = {"frames": request.frames, "samples": request.samples}
        self.finish(request.id, "stop" if request.frames else "empty", counts)
