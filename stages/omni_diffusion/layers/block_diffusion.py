"""A diffusion stage's model that denoises in blocks, with a renderer that sees a fixed number of latent frames.

Shapes as in `omni_diffusion.model` (G is code groups) and `block_attention` (U is branches); Y voices, V values of each.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from omni_diffusion.layers.block_attention import BlockWindow, Surroundings
from omni_diffusion.layers.block_state import BlockState
from omni_diffusion.layers.runge_kutta import RungeKutta
from omni_diffusion.layers.upsampler import AliasFreeUpsampler
from omni_diffusion.model import DiffusionModel, Windows


class BlockDenoiser(nn.Module, ABC):
    """Computes the velocity of the latents of blocks.

    width: D, width of a latent frame's condition. latent_width: M. block: F, latent frames of a block. repeats: latent
    frames of a code frame. branches: U, 2 with guidance, 1 without.
    """

    def __init__(self, *, width: int, latent_width: int, block: int, repeats: int, branches: int) -> None:
        super().__init__()
        self.width, self.latent_width = width, latent_width
        self.block, self.repeats, self.branches = block, repeats, branches

    @abstractmethod
    def prepare(self, times_E: Tensor) -> None:
        """Called once, after the weights are loaded. times_E: times of the evaluations, float32, on the weights'
        device."""

    @abstractmethod
    def history_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of `History.kept_RELX`. Called after `prepare`."""

    @abstractmethod
    def condition(self, codes_BNG: Tensor, voices_BUV: Tensor) -> Tensor:
        """The part of the input that does not depend on the noise, `[B, U, N * repeats, D]`: the same at each
        evaluation. codes_BNG: int64, any value."""

    @abstractmethod
    def surroundings(self, window: BlockWindow) -> Surroundings:
        """Inputs shared by the evaluations of a step."""

    @abstractmethod
    def velocity(self, noisy_BKFM: Tensor, evaluation_B: Tensor, window: BlockWindow, around: Surroundings) -> Tensor:
        """The velocity of blocks, `[B, K, F, M]` in float32, guidance included. evaluation_B: int64, indexes into the
        times."""


class BlockDiffusion(DiffusionModel[BlockState]):
    """net: the denoiser. renderer: takes `[B, M, T]`; it may have another dtype.

    remembers: whether a window without context continues from the window before: no block is denoised twice, and the
    past of a window is exact.
    """

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
        self._num_groups, self._sample_rate, self._num_steps = num_groups, sample_rate, num_steps
        self._remembers = remembers
        self._schedule = RungeKutta(num_steps)
        self._voices_YUV = nn.Buffer(torch.empty(0), persistent=False)

    @property
    def num_groups(self) -> int:
        return self._num_groups

    @property
    def sample_rate(self) -> int:
        return self._sample_rate

    @property
    def num_voices(self) -> int:
        return len(self._voices_YUV)

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def block_frames(self) -> int:
        return self.net.block // self.net.repeats

    @property
    def repeats(self) -> int:
        return self.net.repeats

    @property
    def latent_width(self) -> int:
        return self.net.latent_width

    @property
    def samples_per_latent(self) -> int:
        return self.renderer.samples_per_frame

    @property
    def render_context(self) -> int:
        return self.renderer.context

    def ready(self, voices_YUV: Tensor) -> None:
        """Prepares the times and the voices, in order, which are the same for all requests. Called once, after the
        weights are loaded; voices are on their device and in their dtype."""
        self._schedule = RungeKutta(self._num_steps, device=voices_YUV.device)
        self.net.prepare(self._schedule.times_E)
        self._voices_YUV = nn.Buffer(voices_YUV, persistent=False)

    def new_state(self, num_rows: int, window_frames: int) -> BlockState:
        net = self.net
        shape = (num_rows, net.branches, window_frames * net.repeats, net.width)
        history = net.history_shape(num_rows) if self._remembers else None
        return BlockState.allocate(shape, history, next(net.parameters()), net.block, net.repeats)

    @torch.no_grad()
    def begin(self, state: BlockState, windows: Windows) -> None:
        voices_BUV = self._voices_YUV.index_select(0, windows.voices_B)
        state.begin(self.net.condition(windows.codes_BNG, voices_BUV), windows)

    @torch.no_grad()
    def denoise(self, state: BlockState, latents_BTM: Tensor, rows_B: Tensor, steps_B: Tensor) -> Tensor:
        window = state.window(rows_B, latents_BTM.shape[1])
        around = self.net.surroundings(window)

        def velocity(noisy_BKFM: Tensor, evaluation_B: Tensor) -> Tensor:
            return self.net.velocity(noisy_BKFM, evaluation_B, window, around)

        return self._schedule.advance(latents_BTM.unflatten(1, (-1, state.block)), steps_B, velocity).flatten(1, 2)

    @torch.no_grad()
    def render(self, latents_BTM: Tensor) -> Tensor:
        wave_BS: Tensor = self.renderer(latents_BTM.transpose(1, 2))
        return wave_BS
