"""What a model author writes for a vocoder stage.

Shape legend: B rows of one batch, N frames of each, G code groups, S samples of each.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch import Tensor, nn

StateT = TypeVar("StateT")


class VocoderModel(nn.Module, ABC, Generic[StateT]):
    """Turns code frames into samples chunk by chunk, with state carried from chunk to chunk.

    The chunks of one request, concatenated, are the same samples however its frames were cut into chunks. `reset` and
    `decode` run inside device phases, which may be captured: no synchronization, no control flow on tensor values.
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
    def min_first_frames(self) -> int:
        """Fewest frames that `decode` takes to begin a stream. A request with fewer in all gives no sample."""
        return 1

    @abstractmethod
    def new_state(self, num_rows: int) -> StateT:
        """Preallocated state of `num_rows` independent streams, on the model's device. Called once, at start-up."""

    @abstractmethod
    def reset(self, state: StateT, rows_B: Tensor) -> None:
        """Rows `rows_B` (int64) begin a new stream."""

    @abstractmethod
    def decode(self, codes_BNG: Tensor, state: StateT, rows_B: Tensor, first: bool) -> Tensor:
        """The next samples `[B, S]`, any float dtype, in [-1, 1]; S is `samples(N, first)`.

        codes_BNG: int64, the next frames of each row. rows_B: int64, distinct, but that one may stand there several
        times if it pads the batch: with the same codes, and read by nobody. first: whether these are the rows' first frames since
        `reset`. A row's samples must not depend on the other rows. A code may be any id that its producer samples, such as the one
        that ends speech, where a request has it go on (`ignore_eos`): `clamp` those that no table has.
        """

    @abstractmethod
    def samples(self, frames: int, first: bool) -> int:
        """How many samples a chunk gives, 0 or more. A first chunk is shorter by what the model looks ahead."""
