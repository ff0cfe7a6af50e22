"""The stage worker: takes frames out of the producer's memory, denoises windows step by step, gives samples to the host."""

import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from omni.chunks import AudioChunk
from omni.device import COMPLETED, Device
from omni.errors import InputError, StageError
from omni.frames import FrameStore, RowQueue, read_arrival
from omni.payload import Payload
from omni.sampling_params import SamplingParams
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage, release
from omni_diffusion.denoiser import MOST_BEGUN, Denoiser
from omni_diffusion.inputs import Voice
from omni_diffusion.model import DiffusionModel, StateT
from omni_diffusion.noise import Noise
from omni_diffusion.options import DiffusionOptions, beside_seed
from omni_diffusion.renderer import RenderedPieces, Renderer
from omni_diffusion.request import DiffusionRequest
from omni_diffusion.voice import read_voice
from omni_diffusion.windows import Piece, WindowSizes


class DiffusionWorker(MailboxWorker[DiffusionRequest]):
    """Runs one diffusion model. Every step is of all rows that have one to make, whichever of their steps it is."""

    def __init__(
        self, name: str, device: Device, model: DiffusionModel[StateT], options: DiffusionOptions, priority: int = 0
    ) -> None:
        super().__init__(name)
        stream = device.stream(name, priority=priority)
        copy_stream = device.stream(f"{name}-copy", priority=priority)
        rows = options.max_num_seqs
        self._device = device
        self._stream = stream
        self._model = model
        self._options = options
        self._sizes = WindowSizes.of(options, model)
        self._rows = RowQueue[DiffusionRequest](rows)
        self._store = FrameStore(device, stream, rows, self._sizes.capacity, model.num_groups)
        self._denoiser = Denoiser(device, stream, model, self._store, rows, self._sizes, options.tf32)
        latents_RTM = self._denoiser.latents_RTM
        self._renderer = Renderer(device, stream, copy_stream, model, latents_RTM, self._sizes, options.tf32)
        self._in_flight: deque[RenderedPieces] = deque()
        self._totals = {"windows": 0, "steps": 0, "frames": 0, "samples": 0}

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures steps of these numbers of rows. At start."""
        for size in sizes:
            self._denoiser.capture([size])
            self._renderer.capture([size])

    def run_largest(self) -> None:
        """Launches the largest beginning, step and rendering there may be, on rows of nothing. At start."""
        rows, sizes = self._options.max_num_seqs, self._sizes
        last = Piece(sizes.most_fresh, sizes.context, sizes.most_fresh + sizes.context, 0)
        for launches in (
            self._denoiser.null_begin(min(rows, MOST_BEGUN)),
            self._denoiser.null_step(rows, sizes.frames),
            self._renderer.null_pieces(rows, last),
        ):
            self._device.enqueue(self._stream, launches)

    def check(self, sampling: SamplingParams, field: str) -> None:
        if (name := beside_seed(sampling)) is not None:
            problem = f"stage {self.name!r} draws noise and no tokens: it knows seed alone"
            raise InputError(f"{field}.{name}", problem, "leave it out")

    def usage(self) -> StageUsage:
        # Copies: other threads ask, while this one goes on.
        requests, seated = list(self.requests.values()), list(self._rows.seated)
        return {
            "requests": len(requests),
            "rows": len(seated),
            "leases": sum(len(request.arrivals) for request in requests),
            "frames": sum(request.buffered for request in seated),
            "windows": sum(request.window is not None for request in seated),
            "pieces": len(self._in_flight),
        }

    def counters(self) -> Mapping[str, int]:
        return dict(self._totals)

    def close(self) -> None:
        for request_id in list(self.requests):
            self.drop(self.requests.pop(request_id))
        self._in_flight.clear()

    def open(self, message: Open) -> DiffusionRequest:
        self.check(message.sampling, f"sampling.{self.name}")
        seed = message.sampling.over(self._options.sampling).seed
        request = DiffusionRequest(message.request_id, set(message.inputs), message.rank)
        request.seed = secrets.randbits(63) if seed is None else seed
        request.sample_index = message.sample_index
        return request

    def feed(self, request: DiffusionRequest, message: Feed) -> None:
        try:
            if isinstance(message.payload.meta, Voice):
                self._hear(request, message.payload.meta, message)
                release(message, COMPLETED)
                return
            arrival = read_arrival(message, "diffusion", self._model.num_groups)
        except ValueError as error:
            release(message, COMPLETED)
            raise StageError(self.name, "taking its input", str(error)) from error
        if request.row is None and not request.arrivals:
            self._rows.join(request)
        request.arrivals.append(arrival)

    def end(self, request: DiffusionRequest, source: str) -> None:
        request.open_sources.discard(source)
        if not request.open_sources and request.voice is None and (request.arrivals or request.known):
            raise StageError(self.name, "taking its input", "frames came, and no Voice that speaks them")
        if request.finished(self._sizes):
            self._finish(request)

    def pause(self, request: DiffusionRequest) -> None:
        request.paused = True

    def resume(self, request: DiffusionRequest) -> None:
        request.paused = False

    def drop(self, request: DiffusionRequest) -> None:
        request.live = False
        self._rows.leave(request)
        while request.arrivals:
            request.arrivals.popleft().let_go()

    def advance(self) -> bool:
        moved = False
        while self._in_flight and self._in_flight[0].host.free:
            self._collect(self._in_flight.popleft())
            moved = True
        moved |= self._rows.seat()
        moved |= self._take_frames()
        # What a step has finished is rendered before the next step, and who begins joins that one.
        while self._render():
            moved = True
        moved |= self._begin()
        moved |= self._step()
        for request in [request for request in self._rows.seated if request.finished(self._sizes)]:
            self._finish(request)
            moved = True
        return moved

    def _hear(self, request: DiffusionRequest, voice: Voice, message: Feed) -> None:
        if request.voice is not None:
            raise ValueError("a second Voice came; a request has one")
        model = self._model
        given = read_voice(voice, message, model.num_voices, model.latent_width)
        request.voice = voice.index
        request.noise = Noise(
            request.seed, request.sample_index, model.block_frames, model.repeats, model.latent_width, given
        )

    def _take_frames(self) -> bool:
        moved, failed = self._store.take(self._rows.seated)
        for request, error in failed.items():
            self.fail(request.id, "taking its frames", error)
        return moved

    def _begin(self) -> bool:
        """Begins a few windows; others begin in the next round, when other stages have had theirs."""
        windows = {request: window for request in self._rows.seated if (window := request.next_window(self._sizes))}
        if not windows or not self._denoiser.can_begin:
            return False
        batch = _batch(list(windows))[:MOST_BEGUN]
        try:
            self._denoiser.begin(batch, [windows[request] for request in batch])
        except Exception as error:
            self._isolate(batch, "beginning a window", error)
            return True
        for request in batch:
            request.begin(windows[request], self._sizes)
        self._totals["windows"] += len(batch)
        return True

    def _step(self) -> bool:
        """One step of all rows that are being denoised."""
        steps = self._model.num_steps
        rows = [request for request in self._rows.seated if request.window is not None and request.step < steps]
        if not rows or not self._denoiser.can_step:
            return False
        batch = _batch(rows)
        try:
            prepared = self._denoiser.prepare(batch)
        except Exception as error:
            self._isolate(batch, "denoising a window", error)
            return True
        try:
            self._denoiser.launch(prepared)
        except Exception as error:
            # Their latents may be half written, so they cannot be tried again one by one.
            for request in batch:
                self.fail(request.id, "denoising a window", error)
            return True
        for request in batch:
            request.step += 1
            request.alone = False
        self._totals["steps"] += 1
        return True

    def _render(self) -> bool:
        """Renders pieces of one shape; a request's first goes before later ones, for it is waited for."""
        pieces: dict[Piece, list[DiffusionRequest]] = {}
        for request in self._rows.seated:
            piece = request.next_piece(self._sizes, self._model.num_steps)
            if piece is not None:
                pieces.setdefault(piece, []).append(request)
        if not pieces or not self._renderer.ready:
            return False
        piece = min(pieces, key=lambda piece: min(request.rendered for request in pieces[piece]) > 0)
        batch = _batch(pieces[piece])
        try:
            rendered = self._renderer.launch(self._renderer.prepare(batch, piece))
        except Exception as error:
            self._isolate(batch, "rendering a piece", error)
            return True
        for request in batch:
            self._totals["frames"] += request.window.fresh if request.window is not None else 0
            request.take(piece)
        if rendered is not None:
            self._in_flight.append(rendered)
            self._totals["samples"] += rendered.samples * len(batch)
        return True

    def _isolate(self, batch: Sequence[DiffusionRequest], doing: str, error: Exception) -> None:
        """After a failure that can be tried again: each is, alone, and one that was alone fails."""
        if len(batch) == 1:
            self.fail(batch[0].id, doing, error)
        for request in batch:
            request.alone = True

    def _collect(self, rendered: RenderedPieces) -> None:
        for index, request in enumerate(rendered.requests):
            if not request.live:
                continue
            request.pieces -= 1
            request.samples += rendered.samples
            chunk = AudioChunk(samples=rendered.read(index), sample_rate=self._model.sample_rate)
            self.outbox.append(Produced(request.id, Payload(chunk), COMPLETED))
        rendered.host.release()

    def _finish(self, request: DiffusionRequest) -> None:
        counts = {"frames": request.denoised, "samples": request.samples}
        self.finish(request.id, "stop" if request.denoised else "empty", counts)


def _batch(requests: list[DiffusionRequest]) -> list[DiffusionRequest]:
    """All of them, but that one which is to go alone does."""
    return next(([request] for request in requests if request.alone), requests)
