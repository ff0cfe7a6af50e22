"""The interface of a model for a diffusion stage.

Shape legend: R rows of state, B rows of one batch, N code frames of a window, G code groups, T latent frames of a
window (or of a rendered piece), M values of a latent frame, S samples.
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
    fresh_B: number of frames behind these that are emitted once the window is done. Frames behind them are look-ahead.
    frames_B: total number of frames of the window, at least 1. Only a stream's last window ends within a block.
    voices_B: index of the voice, 0 to `num_voices` - 1.
    codes_BNG: codes; behind a row's `frames_B` frames is padding with codes of some frame.
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

    A code frame stands for `repeats` latent frames. A stream is denoised in windows of whole blocks of `block_frames`
    code frames (its last block may be shorter): a window's frames may depend on each other, and outside of the window
    only on the state of the row that the model carries over.

    `begin`, `denoise` and `render` run inside device phases, which are captured: no synchronization, no control flow on
    tensor values, control flow depends on shapes only. A row's results must not depend on the other rows.
    """

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """Codes per frame."""

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Hz."""

    @property
    @abstractmethod
    def num_voices(self) -> int:
        """How many voices were loaded, at least 1."""

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Steps that take noise to latents, at least 1."""

    @property
    @abstractmethod
    def block_frames(self) -> int:
        """Code frames of a block."""

    @property
    @abstractmethod
    def repeats(self) -> int:
        """Latent frames of a code frame."""

    @property
    @abstractmethod
    def latent_width(self) -> int:
        """Values of a latent frame."""

    @property
    @abstractmethod
    def samples_per_latent(self) -> int:
        """Samples of a latent frame."""

    @property
    @abstractmethod
    def render_context(self) -> int:
        """Latent frames to either side that a latent frame's samples depend on, 0 or more."""

    @abstractmethod
    def new_state(self, num_rows: int, window_frames: int) -> StateT:
        """Preallocated state of `num_rows` rows, the null row included, for windows of up to `window_frames` code frames, on the
        model's device. Called once, at start-up."""

    @abstractmethod
    def begin(self, state: StateT, windows: Windows) -> None:
        """Readies rows for new windows: all that the steps need but the latents. Windows of a stream come in order."""

    @abstractmethod
    def denoise(self, state: StateT, latents_BTM: Tensor, rows_B: Tensor, steps_B: Tensor) -> Tensor:
        """Takes each row's latents one step on; returns them, `[B, T, M]`. Changes nothing in place but `state`.

        latents_BTM: fp32, normal noise at step 0. T: whole blocks, enough for the window of each row, maybe fewer than `new_state`
        was told: what the row has behind them is padding. What is behind a row's frames is padding too; it begins as zeros, and
        stays finite. rows_B: int64, as `Windows.rows_B`, each begun. steps_B: int64, each row's own step, 0 to `num_steps` - 1.
        """

    @abstractmethod
    def render(self, latents_BTM: Tensor) -> Tensor:
        """Samples `[B, T * samples_per_latent]`, any float dtype, in [-1, 1], of T latent frames (fp32) of each row.

        The edges of a piece are to it what the edges of a stream are. So a sample that is `render_context` latent frames or more
        away from an edge is that of the whole stream, and so is one nearer to an edge that is the stream's own.
        """
