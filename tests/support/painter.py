"""A tiny diffusion model whose every window is one formula, and its reference implementation.

Shape legend: B rows, K blocks of a window, N code frames, F latent frames of a block, T latent frames, M values of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.connector import Ref
from omni.device import Device
from omni.hookspecs import hookimpl
from omni.payload import Payload
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni.plugin.entries import ModelFamily
from omni.plugin.manager import Plugins
from omni.sampling import SamplingParams
from omni.stage import StageContext
from omni_diffusion.inputs import Voice
from omni_diffusion.model import DiffusionModel, Windows
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import DenoisingWindow, Noise
from omni_diffusion.worker import DiffusionWorker
from tests.support.frame_bench import POISON, FrameBench
from tests.support.plugins import plugins_of

BLOCK, REPEATS, WIDTH, RATE, STEPS, VOICES = 3, 2, 2, 3, 3, 4
OWN, BACK, AHEAD = 0.5, 0.25, 0.125
"""How much of a latent, of the mean of the block before and of the one after is in the next step's latent."""


@dataclass(frozen=True, slots=True)
class Span:
    """A window that has begun."""

    first: int
    context: int
    fresh: int
    frames: int


class Canvas:
    """Per row: what drives its code frames, and how many they are."""

    def __init__(self, rows: int, frames: int, device: torch.device) -> None:
        self.drive = torch.full((rows, frames), float("nan"), device=device)
        self.frames = torch.ones(rows, dtype=torch.int64, device=device)
        self.drive[-1] = 0


class Painter(DiffusionModel[Canvas]):
    """A step takes a latent on by its own value, by the means of the blocks beside its own, and by what drives its frame: codes,
    voice, place in the stream, step. Rendering weighs `context` latents to either side.

    watched: whether it reads from the device: to refuse codes, and to record the batches so far. begun: windows
    that began. steps: rows, latent frames, steps of the rows. parts: rows, latent frames.
    """

    num_groups = 2
    sample_rate = 24000
    num_voices = VOICES
    num_steps = STEPS
    block_frames = BLOCK
    repeats = REPEATS
    latent_width = WIDTH
    samples_per_latent = RATE

    def __init__(self, context: int = 2, device: str = "cpu", watched: bool = True) -> None:
        super().__init__()
        self.context = self.render_context = context
        self.watched = watched
        self.weights = torch.nn.Buffer(torch.tensor([1, 2], device=device))
        self._device = torch.device(device)
        self.begun: list[list[Span]] = []
        self.steps: list[tuple[int, int, list[int]]] = []
        self.parts: list[tuple[int, int]] = []

    def new_state(self, num_rows: int, window_frames: int) -> Canvas:
        return Canvas(num_rows, window_frames, self._device)

    def begin(self, state: Canvas, windows: Windows) -> None:
        place_N = torch.arange(windows.codes_BNG.shape[1], device=self._device)
        there_BN = place_N < windows.frames_B[:, None]
        if self.watched:
            columns = (windows.first_B, windows.context_B, windows.fresh_B, windows.frames_B)
            self.begun.append([Span(*numbers) for numbers in torch.stack(columns, 1).tolist()])
            if bool((windows.codes_BNG[there_BN] == POISON).any()):
                raise ValueError("poisoned")
        codes_BN = (windows.codes_BNG * self.weights).sum(-1)
        drive_BN = codes_BN / 64 + (windows.first_B[:, None] + place_N) / 16 + windows.voices_B[:, None]
        state.drive.index_copy_(0, windows.rows_B, drive_BN.masked_fill(~there_BN, 0))
        state.frames.index_copy_(0, windows.rows_B, windows.frames_B)

    def denoise(self, state: Canvas, latents_BTM: Tensor, rows_B: Tensor, steps_B: Tensor) -> Tensor:
        rows, length, _ = latents_BTM.shape
        if self.watched:
            self.steps.append((rows, length, steps_B.tolist()))
        drive_BT = state.drive[rows_B, : length // REPEATS].repeat_interleave(REPEATS, 1)
        there_BT = torch.arange(length, device=self._device) < state.frames[rows_B, None] * REPEATS
        there_BKF1 = there_BT.view(rows, -1, BLOCK * REPEATS, 1)
        latents_BKFM = latents_BTM.view(rows, -1, BLOCK * REPEATS, WIDTH).masked_fill(~there_BKF1, 0)
        means_BKM = latents_BKFM.sum(2) / there_BKF1.sum(2).clamp(min=1)
        none_B1M = torch.zeros_like(means_BKM[:, :1])
        back_BKM = torch.cat((none_B1M, means_BKM[:, :-1]), 1)
        ahead_BKM = torch.cat((means_BKM[:, 1:], none_B1M), 1)
        around_BK1M = (BACK * back_BKM + AHEAD * ahead_BKM)[:, :, None]
        driven_BKF1 = (drive_BT * (1 + steps_B[:, None])).view(there_BKF1.shape) / 8
        return (OWN * latents_BKFM + around_BK1M + driven_BKF1).masked_fill(~there_BKF1, 0).view(latents_BTM.shape)

    def render(self, latents_BTM: Tensor) -> Tensor:
        rows, length, _ = latents_BTM.shape
        self.parts.append((rows, length))
        level_BT = torch.nn.functional.pad(latents_BTM.mean(2).sin(), (self.context, self.context))
        mixed_BT = sum(level_BT[:, d : d + length] / (d + 1) for d in range(2 * self.context + 1))
        assert isinstance(mixed_BT, Tensor)
        return (mixed_BT[:, :, None] * torch.arange(1, RATE + 1, device=self._device) / 8).flatten(1)


def spans(total: int, options: DiffusionOptions) -> list[Span]:
    """The windows of a stream of `total` code frames, block by block."""
    found: list[Span] = []
    done = 0
    while done < total:
        chunk = BLOCK * (options.chunk_blocks if done else options.first_chunk_blocks)
        first = max(0, done - BLOCK * options.blocks_before)
        if total - done < chunk + BLOCK * options.blocks_after:
            found.append(Span(first, done - first, total - done, total - first))
            return found
        found.append(Span(first, done - first, chunk, done - first + chunk + BLOCK * options.blocks_after))
        done += chunk
    return found


def painted(
    codes: NDArray[np.int64], voice: int, noise_TM: NDArray[np.float32], windows: Sequence[Span]
) -> NDArray[np.float64]:
    """The latents of a stream, `[T, M]`: each window by itself, frame by frame."""
    parts = []
    for window in windows:
        numbers = range(window.first, window.first + window.frames)
        latents = {(n, r): noise_TM[n * REPEATS + r].astype(np.float64) for n in numbers for r in range(REPEATS)}
        for step in range(STEPS):
            blocks: dict[int, list[NDArray[np.float64]]] = {}
            for (n, _), value in latents.items():
                blocks.setdefault(n // BLOCK, []).append(value)
            means = {block: np.mean(values, 0) for block, values in blocks.items()}
            none = np.zeros(WIDTH)
            drive = {n: (codes[n, 0] + 2 * codes[n, 1]) / 64 + n / 16 + voice for n in numbers}
            latents = {
                (n, r): OWN * value
                + BACK * means.get(n // BLOCK - 1, none)
                + AHEAD * means.get(n // BLOCK + 1, none)
                + drive[n] * (1 + step) / 8
                for (n, r), value in latents.items()
            }
        fresh = range(window.first + window.context, window.first + window.context + window.fresh)
        parts += [latents[n, r] for n in fresh for r in range(REPEATS)]
    return np.stack(parts)


def samples_of(latents_TM: NDArray[np.float64], context: int) -> NDArray[np.float64]:
    """The samples of a whole stream."""
    level = np.sin(latents_TM.mean(1))
    return np.array(
        [
            sum(level[t + d - context] / (d + 1) for d in range(2 * context + 1) if 0 <= t + d - context < len(level))
            * (j + 1)
            / 8
            for t in range(len(level))
            for j in range(RATE)
        ]
    )


# A diffusion stage driven by hand-made messages.


class Bench(FrameBench):
    """A diffusion stage and a talker's code pages."""

    def __init__(self, device: Device, model: Painter | None = None, /, **options: int | SamplingParams) -> None:
        self.model = model or Painter()
        self.options = msgspec.structs.replace(DiffusionOptions(), **options)
        self.diffusion = DiffusionWorker("diffusion", device, self.model, self.options)
        super().__init__(self.diffusion, self.model, device)

    def speak(
        self, request_id: str, codes: NDArray[np.int64], voice: int = 1, noise: NDArray[np.float32] | None = None
    ) -> Ref:
        """A whole request; its noise is its own by default."""
        self.open(request_id)
        self.give_voice(request_id, voice, noise if noise is not None else noise_of(request_id, len(codes)))
        ref = self.feed_pages(request_id, codes)
        self.end(request_id)
        return ref

    def give_voice(self, request_id: str, voice: int, noise: NDArray[np.float32] | None = None) -> None:
        tensors = {} if noise is None else {"noise": torch.from_numpy(noise)}
        self.feed_host(request_id, Payload(Voice(index=voice), tensors))

    def expect(
        self, request_id: str, codes: NDArray[np.int64], voice: int = 1, noise: NDArray[np.float32] | None = None
    ) -> None:
        """The samples of its windows, each by the book."""
        noise = noise if noise is not None else noise_of(request_id, len(codes))
        whole = samples_of(painted(codes, voice, noise, spans(len(codes), self.options)), self.model.context)
        self.expect_wave(request_id, len(codes), whole.astype(np.float32), rtol=1e-4, atol=1e-5)


def noise_of(request_id: str, count: int) -> NDArray[np.float32]:
    """`[T, M]` for so many code frames."""
    seed = sum(request_id.encode())
    return np.random.default_rng(seed).standard_normal((count * REPEATS, WIDTH), np.float32)


def drawn(seed: int, count: int, sample_index: int = 0) -> NDArray[np.float32]:
    """The noise that a stage draws of a seed, for so many code frames."""
    return Noise(seed, sample_index, BLOCK, REPEATS, WIDTH).of(DenoisingWindow(0, 0, count, count, last=True))


# A family of one diffusion stage, fed by the front end, of a model small enough to check by hand.

PAINT = "paint"
_HERE = "tests.support.painter"
OPTIONS = DiffusionOptions(max_num_seqs=3, first_chunk_blocks=1, chunk_blocks=2, blocks_before=1, blocks_after=1)


def build_painter(context: StageContext) -> Painter:
    return Painter(device=str(context.device.torch_device), watched=False)


def build_nothing(context: StageContext) -> object:
    return object()


def paint_pipeline() -> Pipeline:
    return Pipeline(
        family="paint",
        stages=(Stage(name=PAINT, kind="diffusion", model=f"{_HERE}:build_painter", options=OPTIONS),),
        edges=(),
        outputs=(PipelineOutput(modality="audio", stage=PAINT),),
        frontend=f"{_HERE}:none",
    )


def paint_plugins() -> Plugins:
    """The plugins that the pipeline needs, loaded as entry points are."""
    return plugins_of("diffusion", "local", paint=_HERE)


def published(checkpoint: Checkpoint) -> Pipeline:
    return paint_pipeline()


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [ModelFamily(name="paint", model_types=("paint",), pipeline=f"{_HERE}:published")]
