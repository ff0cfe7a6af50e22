"""A diffusion stage's model that denoises in blocks, with a renderer that sees a fixed number of latent frames.

Shapes as in `omni_diffusion.model` (G is code groups) and `block_attention` (U is branches); Y voices, V values of each.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from omni_diffusion.layers.block_attention import AttentionContext, BlockWindow, History
from omni_diffusion.layers.upsampler import AliasFreeUpsampler
from omni_diffusion.model import DiffusionModel, Windows

STAGES = 4
"""Number of evaluations of a step."""


class RungeKutta:
    """Steps from noise to latents: Runge-Kutta of order four (the 3/8 rule) over swayed times, 0 to 1; S steps, E evaluations.

    times_E: float32, times at which the velocity is evaluated. sway: below 0, the first steps are shorter.
    """

    def __init__(self, steps: int, sway: float = -1.0, device: torch.device | str = "cpu") -> None:
        even = torch.linspace(0, 1, steps + 1, dtype=torch.float32, device="cpu")
        points = even + sway * (torch.cos(math.pi / 2 * even) - 1 + even)
        lengths_S, thirds = points.diff(), torch.arange(STAGES, device="cpu") / 3
        self.times_E = (points[:-1, None] + lengths_S[:, None] * thirds).flatten().to(device)
        self._lengths_S = lengths_S.to(device)

    def advance(self, state_BX: Tensor, steps_B: Tensor, velocity: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Advances by one step. state_BX: float32, any dimensions after the first. steps_B: int64, each row's step. velocity:
        called four times, with states and their evaluations `[B]`."""
        length_B = self._lengths_S.index_select(0, steps_B).view(-1, *[1] * (state_BX.dim() - 1))
        first_B = STAGES * steps_B
        k1 = velocity(state_BX, first_B)
        k2 = velocity(state_BX + length_B * k1 / 3, first_B + 1)
        k3 = velocity(state_BX + length_B * (k2 - k1 / 3), first_B + 2)
        k4 = velocity(state_BX + length_B * (k1 - k2 + k3), first_B + 3)
        return state_BX + length_B * (k1 + 3 * (k2 + k3) + k4) / 8


@dataclass(frozen=True, slots=True)
class BlockState:
    """Each row's window: its condition, and four numbers: its first block, its number of latent frames, whether it continues from
    the history, and its block to be kept there. history_RELX: None if windows are independent. block: latent frames of a block.
    repeats: latent frames of a code frame."""

    condition_RUTD: Tensor
    numbers_4R: Tensor
    history_RELX: Tensor | None
    block: int
    repeats: int

    def begin(self, condition_BUTD: Tensor, windows: Windows) -> None:
        """Begins windows with these conditions. A window without context continues from the window before."""
        self.condition_RUTD[windows.rows_B, :, : condition_BUTD.shape[2]] = condition_BUTD
        follows_B, block_frames = (windows.first_B > 0) & (windows.context_B == 0), self.block // self.repeats
        # The last emitted block, which the next window follows.
        last_B = (windows.context_B + windows.fresh_B - 1) // block_frames
        first_B, frames_B = windows.first_B // block_frames, windows.frames_B * self.repeats
        self.numbers_4R[:, windows.rows_B] = torch.stack((first_B, frames_B, follows_B.long(), last_B))

    def window(self, rows_B: Tensor, length: int) -> BlockWindow:
        """The windows of some rows, limited to the first `length` latent frames, which are whole blocks."""
        first_B, frames_B, follows_B, last_B = self.numbers_4R.index_select(1, rows_B)
        starts_K = torch.arange(0, length, self.block, device=rows_B.device)
        condition_UBTD = self.condition_RUTD[rows_B, :, :length].transpose(0, 1)
        return BlockWindow(
            first_B,
            (frames_B[:, None] - starts_K).clamp(0, self.block),
            condition_UBTD.unflatten(2, (-1, self.block)),
            None if self.history_RELX is None else History(self.history_RELX, rows_B, follows_B.bool(), last_B),
        )


class BlockDenoiser(nn.Module, ABC):
    """Computes the velocity of the latents of blocks. width: D, width of a latent frame's condition. latent_width: M. block: F,
    latent frames of a block. repeats: latent frames of a code frame. branches: U, 2 with guidance, 1 without."""

    def __init__(self, *, width: int, latent_width: int, block: int, repeats: int, branches: int) -> None:
        super().__init__()
        self.width, self.latent_width = width, latent_width
        self.block, self.repeats, self.branches = block, repeats, branches

    @abstractmethod
    def prepare(self, times_E: Tensor) -> None:
        """Called once, after the weights are loaded. times_E: of the evaluations, float32, on the weights' device."""

    @abstractmethod
    def history_shape(self, rows: int) -> tuple[int, ...]:
        """Returns the shape of `History.kept_RELX`. Called after `prepare`."""

    @abstractmethod
    def condition(self, codes_BNG: Tensor, voices_BUV: Tensor) -> Tensor:
        """The part of the input without the noise, `[B, U, N * repeats, D]`. codes_BNG: int64, any value."""

    @abstractmethod
    def attention_context(self, window: BlockWindow) -> AttentionContext:
        """Inputs shared by the evaluations of a step."""

    @abstractmethod
    def velocity(
        self, noisy_BKFM: Tensor, evaluation_B: Tensor, window: BlockWindow, context: AttentionContext
    ) -> Tensor:
        """The velocity of blocks, `[B, K, F, M]`, float32, guidance included. evaluation_B: int64, indexes into the times."""


class BlockDiffusion(DiffusionModel[BlockState]):
    """A diffusion model of blocks. net: the denoiser. renderer: takes `[B, M, T]`; it may have another dtype. remembers: whether a
    window without context continues from the window before: no block is denoised twice, and the past of a window is exact."""

    def __init__(
        self,
        net: BlockDenoiser,
        renderer: AliasFreeUpsampler,
        *,
        num_groups: int,
        sample_rate: int,
        num_steps: int,
        remembers: bool,
    ) -> None:
        super().__init__()
        self.net = net
        self.renderer = renderer
        self.num_groups, self.sample_rate, self.num_steps = num_groups, sample_rate, num_steps
        self.block_frames, self.repeats, self.latent_width = net.block // net.repeats, net.repeats, net.latent_width
        self.samples_per_latent, self.render_context = renderer.samples_per_frame, renderer.context
        self._remembers = remembers
        self._voices_YUV = nn.Buffer(torch.empty(0), persistent=False)

    def ready(self, voices_YUV: Tensor) -> None:
        """Prepares times and voices. Called once, after the weights are loaded; voices have their device and dtype."""
        self._schedule = RungeKutta(self.num_steps, device=voices_YUV.device)
        self.net.prepare(self._schedule.times_E)
        self._voices_YUV = nn.Buffer(voices_YUV, persistent=False)
        self.num_voices = len(voices_YUV)

    def new_state(self, num_rows: int, window_frames: int) -> BlockState:
        net, like = self.net, next(self.net.parameters())
        condition_RUTD = like.new_zeros((num_rows, net.branches, window_frames * net.repeats, net.width))
        numbers_4R = like.new_zeros((4, num_rows), dtype=torch.int64)
        history_RELX = like.new_zeros(net.history_shape(num_rows)) if self._remembers else None
        return BlockState(condition_RUTD, numbers_4R, history_RELX, net.block, net.repeats)

    @torch.no_grad()
    def begin(self, state: BlockState, windows: Windows) -> None:
        voices_BUV = self._voices_YUV.index_select(0, windows.voices_B)
        state.begin(self.net.condition(windows.codes_BNG, voices_BUV), windows)

    @torch.no_grad()
    def denoise(self, state: BlockState, latents_BTM: Tensor, rows_B: Tensor, steps_B: Tensor) -> Tensor:
        window = state.window(rows_B, latents_BTM.shape[1])
        context = self.net.attention_context(window)

        def velocity(noisy_BKFM: Tensor, evaluation_B: Tensor) -> Tensor:
            return self.net.velocity(noisy_BKFM, evaluation_B, window, context)

        return self._schedule.advance(latents_BTM.unflatten(1, (-1, state.block)), steps_B, velocity).flatten(1, 2)

    @torch.no_grad()
    def render(self, latents_BTM: Tensor) -> Tensor:
        wave_BS: Tensor = self.renderer(latents_BTM.transpose(1, 2))
        return wave_BS
