"""The interface of a model for a vocoder stage.

Shape legend: B rows of one batch, N frames of each, G code groups, S samples of each.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch import Tensor, nn

StateT = TypeVar("StateT")


class VocoderModel(nn.Module, ABC, Generic[StateT]):
    """Decodes code frames to samples, chunk by chunk, with state from chunk to chunk.

    The concatenated samples of one request do not depend on the division of its frames into chunks. `reset` and
    `decode` run inside device phases, which may be captured: no synchronization, no control flow on tensor values.
    """

    num_groups: int
    """The number of codes of a frame."""
    sample_rate: int
    """Sample rate of the waveform, in Hz."""

    @property
    def min_first_frames(self) -> int:
        """Minimum frames of a stream's first `decode`. A request with fewer frames in total gives no samples."""
        return 1

    @abstractmethod
    def new_state(self, num_rows: int) -> StateT:
        """Preallocated state of `num_rows` independent streams, on the model's device. Called once, at start-up."""

    @abstractmethod
    def reset(self, state: StateT, rows_B: Tensor) -> None:
        """Starts a new stream in rows `rows_B` (int64)."""

    @abstractmethod
    def decode(self, codes_BNG: Tensor, state: StateT, rows_B: Tensor, first: bool) -> Tensor:
        """The next samples `[B, S]`, any float dtype, in [-1, 1]; S is `samples(N, first)`.

        codes_BNG: int64, the next frames of each row. rows_B: int64, distinct, except for the null row, which may occur
        several times as padding, with the same codes; its samples are not read. first: whether these are the rows'
        first frames since `reset`. A row's samples must not depend on the other rows. A code may be any id that its
        producer samples, such as the end id with `ignore_eos`: `clamp` ids outside the model's tables. A stream's last
        frames may be followed by padding, copies of the last one, whose samples are not read.
        """

    @abstractmethod
    def samples(self, frames: int, first: bool) -> int:
        """Number of samples of a chunk, 0 or more. A first chunk is shorter by the model's lookahead."""
