"""The stage worker: schedules windows, steps and rendering."""

import secrets
from collections.abc import Iterable
from functools import partial

from omni.device import Device
from omni.errors import InputError, StageError
from omni.sampling import SamplingParams
from omni.stage import Feed, Open, StageUsage, rows_or_default, together
from omni_diffusion.denoiser import MOST_BEGUN, Denoiser
from omni_diffusion.inputs import Voice
from omni_diffusion.model import DiffusionModel, StateT
from omni_diffusion.options import DiffusionOptions, beside_seed
from omni_diffusion.renderer import Renderer
from omni_diffusion.request import DiffusionRequest
from omni_diffusion.windows import Noise, RenderPart, WindowSizes, read_noise
from omni_frames.request import ArrivedFrames
from omni_frames.worker import FrameWorker


class DiffusionWorker(FrameWorker[DiffusionRequest]):
    """Runs one diffusion model. Every step includes all rows with an open window, at any step number."""

    def __init__(
        self, name: str, device: Device, model: DiffusionModel[StateT], options: DiffusionOptions, priority: int = 0
    ) -> None:
        rows, sizes = rows_or_default(options.max_num_seqs), WindowSizes.of(options, model)
        most = rows * (sizes.most_fresh + sizes.context) * model.samples_per_latent
        super().__init__(name, device, model, rows=rows, capacity=sizes.capacity, most_samples=most, priority=priority)
        self._model = model
        self._options = options
        self._num_rows = rows
        self._sizes = sizes
        self._denoiser = Denoiser(
            device, self.stream, model, store=self.store, rows=rows, sizes=sizes, tf32=options.tf32
        )
        latents_RTM = self._denoiser.latents_RTM
        self._renderer = Renderer(
            device, self.stream, model, latents_RTM=latents_RTM, samples=self.samples, sizes=sizes, tf32=options.tf32
        )
        self.totals["windows"] = 0

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures steps of these numbers of rows, and the beginnings and renderings around them. At start."""
        for size in sizes:
            self._denoiser.capture(size)
            self._renderer.capture(size)

    def run_largest(self) -> None:
        """Launches the largest possible beginning, step and rendering, on null rows. At start."""
        rows, sizes = self._num_rows, self._sizes
        for launches in (
            self._denoiser.null_begin(min(rows, MOST_BEGUN)),
            self._denoiser.null_step(rows, sizes.frames),
            self._renderer.null_parts(rows, sizes.end),
        ):
            self.device.enqueue(self.stream, launches)

    def check(self, sampling: SamplingParams, field: str) -> None:
        if (name := beside_seed(sampling)) is not None:
            problem = f"stage {self.name!r} draws noise and no tokens: only seed is supported"
            raise InputError(f"{field}.{name}", problem, "leave it out")

    def usage(self) -> StageUsage:
        windows = sum(request.window is not None for request in list(self.rows.owners))
        return {**super().usage(), "windows": windows}

    def open(self, message: Open) -> DiffusionRequest:
        self.check(message.sampling, f"sampling.{self.name}")
        seed = message.sampling.with_defaults(self._options.sampling).seed
        request = DiffusionRequest(message.request_id, set(message.inputs), message.order)
        request.seed = secrets.randbits(63) if seed is None else seed
        request.sample_index = message.sample_index
        return request

    def read(self, request: DiffusionRequest, message: Feed) -> ArrivedFrames | None:
        voice, model = message.payload.meta, self._model
        if not isinstance(voice, Voice):
            return super().read(request, message)
        if request.voice is not None:
            raise ValueError("a second Voice arrived; a request has one")
        if not 0 <= voice.index < model.num_voices:
            raise ValueError(f"voice {voice.index} is out of range, 0 to {model.num_voices - 1}")
        given, shape = read_noise(message, model.latent_width), (model.block_frames, model.repeats, model.latent_width)
        request.voice = voice.index
        request.noise = Noise(request.seed, request.sample_index, *shape, given)
        return None

    def end(self, request: DiffusionRequest, source: str) -> None:
        super().end(request, source)
        if not request.open_sources and request.voice is None and (request.arrivals or request.known):
            raise StageError(self.name, "taking its input", "frames arrived without a Voice")

    def finished(self, request: DiffusionRequest) -> bool:
        rendered = request.rendered == request.known * self._sizes.repeats
        return request.ended and request.window is None and not request.in_flight and rendered

    def run(self) -> bool:
        moved = False
        # Finished latents are rendered before the next step, and rows that begin join that step.
        while self._render():
            moved = True
        moved |= self._begin()
        return self._step() or moved

    def _begin(self) -> bool:
        """Begins a few windows; others begin in the next tick, after the other stages' ticks."""
        windows = {request: window for request in self.rows.owners if (window := request.next_window(self._sizes))}
        if not windows or not self._denoiser.window_uploads.ready:
            return False
        batch = together(list(windows))[:MOST_BEGUN]
        prepare = partial(self._denoiser.prepare_begin, batch, [windows[request] for request in batch])
        if self.run_batch(batch, "beginning a window", prepare, again=True):
            for request in batch:
                request.begin(windows[request], self._sizes)
            self.totals["windows"] += len(batch)
        return True

    def _step(self) -> bool:
        steps = self._model.num_steps
        rows = [request for request in self.rows.owners if request.window is not None and request.step < steps]
        if not rows or not self._denoiser.step_uploads.ready:
            return False
        batch = together(rows)
        if self.run_batch(batch, "denoising a window", partial(self._denoiser.prepare_step, batch)):
            for request in batch:
                request.step += 1
            self.totals["steps"] += 1
        return True

    def _render(self) -> bool:
        """Renders parts that one batch computes. First parts of requests precede later ones, since users wait for them."""
        batches: dict[RenderPart, dict[DiffusionRequest, RenderPart]] = {}
        for request in self.rows.owners:
            part = request.next_part(self._sizes, self._model.num_steps)
            if part is not None:
                batches.setdefault(self._sizes.batch_part(request.rendered, part), {})[request] = part
        if not batches or not self._renderer.ready:
            return False
        batch_part, parts = min(batches.items(), key=lambda batch: all(request.rendered for request in batch[1]))
        batch = together(list(parts))
        own = {request: parts[request] for request in batch}
        if self.run_batch(batch, "rendering a part", partial(self._renderer.prepare, own, batch_part), again=True):
            for request, part in own.items():
                self.totals["frames"] += request.window.fresh if request.window is not None else 0
                request.take(part)
        return True
