"""The stage worker: receives media items, encodes each content once, and emits the outputs to all requests for it."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from omni.device import COMPLETED, Device
from omni.errors import InputError, StageError, exception_of
from omni.payload import PageSlice, Payload
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage
from omni_encoder.batch import BatchEncoder, EncodedBatch, PreparedBatch
from omni_encoder.inputs import Encoded, MediaItem
from omni_encoder.jobs import EmittedOutputs, EncoderRequest, Job, JobQueue, OutputCache, Outputs, Waiter
from omni_encoder.model import EncoderModel
from omni_encoder.options import EncoderOptions

_MAX_IN_FLIGHT = 2
"""Maximum batches in flight: one runs, one is queued; items that arrive meanwhile form the next."""


class EncoderWorker(MailboxWorker[EncoderRequest]):
    """Runs one encoder. lengths: batch lengths that batches are padded to."""

    def __init__(
        self,
        name: str,
        device: Device,
        model: EncoderModel,
        options: EncoderOptions,
        priority: int = 0,
        lengths: Sequence[int] = (),
    ) -> None:
        super().__init__(name)
        self.phase_model = model
        self._device = device
        self._stream = device.stream(name, priority=priority)
        self._encoder = BatchEncoder(device, self._stream, model, lengths)
        self._max_length = options.max_batch_length
        self._jobs = JobQueue(options)
        self._cache = OutputCache(options.cache_bytes)
        self._sending: tuple[list[Job], PreparedBatch] | None = None
        self._in_flight: deque[tuple[list[Job], EncodedBatch]] = deque()
        self._totals = {"batches": 0, "encoded": 0, "cached": 0}
        self._held = EmittedOutputs(options.held_bytes)

    def capture(self, lengths: Iterable[int]) -> None:
        self._encoder.capture(lengths)

    def usage(self) -> StageUsage:
        return {
            "requests": len(self.requests),
            "items": len(self._jobs),
            "batches": len(self._in_flight) + (self._sending is not None),
            "payloads": len(self._held),
        }

    def counters(self) -> Mapping[str, int]:
        """batches: launched, with `encoded` items. cached: items with known outputs. retries: failed batches that ran again."""
        return {**self._totals, "retries": self.retries}

    def close(self) -> None:
        super().close()
        for jobs, _ in [*self._in_flight, *([self._sending] if self._sending is not None else [])]:
            for job in jobs:
                self._jobs.remove(job)
        self._sending = None
        self._in_flight.clear()
        self._encoder.close()
        self._held.clear()
        self._cache.clear()

    def open(self, message: Open) -> EncoderRequest:
        return EncoderRequest(message.request_id, set(message.inputs), message.order, message.cache_salt)

    def feed(self, request: EncoderRequest, message: Feed) -> None:
        try:
            item, features = self._read(message.payload)
        except Exception:
            message.release(COMPLETED)
            raise
        request.items += 1
        request.waiting += 1
        key, waiter = (request.cache_salt, item.key), Waiter(request, item.index)
        outputs = self._cache.get(key)
        if outputs is not None and request.paused:
            request.kept.append((item.index, outputs))
        elif outputs is not None:
            self._give(waiter, outputs)
        elif not self._jobs.join(key, waiter):
            self._jobs.add(Job(key, item, features, message, [waiter]))
            return
        request.cached += 1
        self._totals["cached"] += 1
        message.release(COMPLETED)

    def end(self, request: EncoderRequest, source: str) -> None:
        request.open_sources.discard(source)
        self._settle(request)

    def pause(self, request: EncoderRequest) -> None:
        request.paused = True

    def resume(self, request: EncoderRequest) -> None:
        request.paused = False
        for index, outputs in request.kept:
            self._give(Waiter(request, index), outputs)
        request.kept.clear()
        self._settle(request)

    def drop(self, request: EncoderRequest) -> None:
        if request.waiting:
            self._jobs.leave(request)

    def advance(self) -> bool:
        moved = self._held.poll()
        while self._in_flight and self._in_flight[0][1].end.done():
            self._collect(*self._in_flight.popleft())
            moved = True
        if (
            self._sending is None
            and len(self._in_flight) < _MAX_IN_FLIGHT
            and (jobs := self._jobs.next_batch(self._held.first_order if self._held.full else None))
        ):
            self._begin(jobs)
            moved = True
        if self._sending is not None:
            moved |= self._send(*self._sending)
        return moved

    def _begin(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.launched = True
        try:
            self._sending = jobs, self._encoder.prepare([job.features for job in jobs])
        except BaseException as error:
            self._isolate(jobs, exception_of(error))

    def _send(self, jobs: list[Job], prepared: PreparedBatch) -> bool:
        """Sends one piece per tick, and launches the encoding after the last."""
        try:
            moved = self._encoder.send(prepared)
            if not prepared.transfer.finished:
                return moved
            batch = self._encoder.launch(prepared)
        except BaseException as raised:
            error = exception_of(raised)
            self._sending = None
            self._isolate(jobs, error)
            return True
        self._sending = None
        for job in jobs:
            job.feed.release(batch.end)
        self._in_flight.append((jobs, batch))
        self._totals["batches"] += 1
        self._totals["encoded"] += len(jobs)
        return True

    def _isolate(self, jobs: list[Job], error: Exception) -> None:
        # Part of the work may have been enqueued before the error.
        end = self._device.record(self._stream)
        again = any(job.waiters for job in jobs) and self.retry_each(jobs, "encoding media", error)
        for job in jobs:
            if again and job.waiters:
                job.isolated, job.launched, job.after = True, False, end
                continue
            self._jobs.remove(job)
            job.feed.release(end)
            for request_id in dict.fromkeys(waiter.request.id for waiter in job.waiters):
                self.fail(request_id, "encoding its media", error)

    def _collect(self, jobs: list[Job], batch: EncodedBatch) -> None:
        for job, outputs in zip(jobs, batch.outputs, strict=True):
            self._jobs.remove(job)
            self._cache.add(job.key, outputs)
            for waiter in job.waiters:
                self._give(waiter, outputs)
            for request in dict.fromkeys(waiter.request for waiter in job.waiters):
                self._settle(request)

    def _give(self, waiter: Waiter, outputs: Outputs) -> None:
        waiter.request.waiting -= 1
        # Outputs arrive here only after the end of their batch, so there is no event to wait for.
        produced = Produced(waiter.request.id, Payload(Encoded(index=waiter.index), outputs), COMPLETED)
        self._held.add(produced, outputs, waiter.request.order)
        self.outbox.append(produced)

    def _read(self, payload: Payload) -> tuple[MediaItem, Mapping[str, Tensor]]:
        item = payload.meta
        if not isinstance(item, MediaItem):
            raise self._refusal(f"a stage of kind 'encoder' takes no {type(item).__name__}")
        features: dict[str, Tensor] = {}
        for name, tensor in payload.tensors.items():
            if isinstance(tensor, PageSlice):
                raise self._refusal(f"feature {name!r} is a page slice; an encoder takes whole tensors")
            features[name] = tensor
        if item.length > self._max_length:
            problem = f"becomes {item.length} embeddings, and {self.name} encodes {self._max_length} at once"
            # An item without a message, made by a front end itself, has only a number.
            field = item.field or f"media[{item.index}]"
            raise InputError(field, problem, "use a smaller one", f"raise {self.name}.max_batch_length")
        return item, features

    def _refusal(self, problem: str) -> StageError:
        return StageError(self.name, "taking its input", problem)

    def _settle(self, request: EncoderRequest) -> None:
        if not request.open_sources and not request.waiting:
            self.finish(request.id, "stop", {"items": request.items, "cached": request.cached})
