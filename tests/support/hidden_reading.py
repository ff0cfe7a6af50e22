"""What readers of hidden states give for a row: a few numbers that tell it from every other.

Shape legend: n rows, W the emitted width, N numbers of a reading.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from omni.payload import Payload
from omni_ar.inputs import PromptHidden, TokenHidden
from support.hidden_model import EDGE

SUMS = 2
NUMBERS = 2 * EDGE + SUMS


class HiddenRows(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a reader: `hidden`, the rows of some of the prompt's positions, or the one of generated token `index`."""

    prompt: bool
    index: int = 0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A row, read. prompt: whether it is of the prompt. index: which of its `payload_positions`, else which generated token.

    numbers: the whole numbers at both ends, then weighted sums over what lies between.
    """

    prompt: bool
    index: int
    numbers: tuple[float, ...]


class ToReader:
    """The adapter: rows go on, tokens do not."""

    def __init__(self, args: object = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        match payload.meta:
            case PromptHidden():
                return (Payload(HiddenRows(prompt=True), payload.tensors),)
            case TokenHidden(index=index):
                return (Payload(HiddenRows(prompt=False, index=index), payload.tensors),)
        return ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


class ReadOut(nn.Module):
    """Reads rows of one width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        weights = np.random.default_rng(width).standard_normal((width - 2 * EDGE, SUMS)) / np.sqrt(width)
        self.on_host: NDArray[np.float32] = weights.astype(np.float32)
        self.register_buffer("weights", torch.from_numpy(self.on_host.copy()))

    def forward(self, rows_nW: Tensor) -> Tensor:
        """`[n, N]`."""
        return torch.cat([rows_nW[:, :EDGE], rows_nW[:, -EDGE:], rows_nW[:, EDGE:-EDGE] @ self.weights], 1)

    def read(self, rows_nW: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same on the host."""
        return np.concatenate([rows_nW[:, :EDGE], rows_nW[:, -EDGE:], rows_nW[:, EDGE:-EDGE] @ self.on_host], 1)
