"""The interface of a model for a diffusion stage.

Shape legend: R rows of state, B rows of one batch, N code frames of a window, G code groups, T latent frames of a
window (or of a rendered part), M values of a latent frame, S samples.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor, nn

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Windows:
    """Starting windows, one per row of a batch. All tensors are int64 on the device; lengths are in code frames.

    rows_B: rows of the state; distinct, except for the last row, the null row, which pads a batch and is not read.
    first_B: number of a window's first frame in its stream, from 0; a multiple of `block_frames`.
    context_B: number of leading frames that were emitted before; they are denoised again, from the same noise.
    fresh_B: number of frames after these that are emitted once the window is done. Frames after them are look-ahead.
    frames_B: total number of frames of the window, at least 1. Only a stream's last window ends within a block.
    voices_B: index of the voice, 0 to `num_voices` - 1.
    codes_BNG: codes; after a row's `frames_B` frames is padding with codes of some frame.
    """

    rows_B: Tensor
    first_B: Tensor
    context_B: Tensor
    fresh_B: Tensor
    frames_B: Tensor
    voices_B: Tensor
    codes_BNG: Tensor


class DiffusionModel(nn.Module, ABC, Generic[StateT]):
    """Denoises latents under codes, in `num_steps` steps, and renders latents as samples.

    A code frame stands for `repeats` latent frames. A stream is denoised in windows of whole blocks of `block_frames` code frames
    (its last block may be shorter): a window's frames may depend on each other, and outside of it only on the row's carried state.

    `begin`, `denoise` and `render` run inside device phases, which are captured: no synchronization, control flow on shapes only. A
    row's results must not depend on the other rows.
    """

    num_groups: int
    """The number of codes of a frame."""
    sample_rate: int
    """The sample rate of the output, in Hz."""
    num_voices: int
    """Number of loaded voices, at least 1."""
    num_steps: int
    """Number of steps from noise to latents, at least 1."""
    block_frames: int
    """Code frames of a block."""
    repeats: int
    """Latent frames of a code frame."""
    latent_width: int
    """Values of a latent frame."""
    samples_per_latent: int
    """Samples of a latent frame."""
    render_context: int
    """Latent frames to either side that a latent frame's samples depend on, 0 or more."""

    @abstractmethod
    def new_state(self, num_rows: int, window_frames: int) -> StateT:
        """State of `num_rows` rows, the null row included, for windows of up to `window_frames` code frames, on the
        model's device. Called once, at start-up."""

    @abstractmethod
    def begin(self, state: StateT, windows: Windows) -> None:
        """Prepares rows for new windows: all inputs of the steps except the latents. A stream's windows begin in order."""

    @abstractmethod
    def denoise(self, state: StateT, latents_BTM: Tensor, rows_B: Tensor, steps_B: Tensor) -> Tensor:
        """Advances each row's latents by one step. Returns them, `[B, T, M]`. Modifies only `state` in place.

        latents_BTM: fp32, normal noise at step 0. T: whole blocks, enough for the window of each row. Latents after a row's frames
        are padding, initially zero, and stay finite. rows_B: int64, as `Windows.rows_B`. steps_B: int64, each row's step, from 0.
        """

    @abstractmethod
    def render(self, latents_BTM: Tensor) -> Tensor:
        """Renders T latent frames (fp32) of each row as samples `[B, T * samples_per_latent]`, any float dtype, in [-1, 1].

        The edges of a part are treated like the edges of a stream: a sample at least `render_context` latent frames away from an
        edge equals that of the whole stream, as does one nearer to an edge that is also the stream's.
        """
