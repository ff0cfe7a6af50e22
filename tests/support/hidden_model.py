"""A small text model that emits hidden states, and what readers make of a row."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from omni.payload import Payload
from omni_ar.inputs import PromptHidden, TokenHidden
from omni_ar.model import ArShape, Batch
from tests.support.small_text import WIDTH, SmallText, random_matrix

# A row of it shows its origin exactly: position and token id are at its beginning and at its end. Between them is a projection of
# the layers' output for all tokens before, so a row that is torn, stale or of another request differs from the right one.
#
# Shape legend: T tokens, D the model's width, W the emitted width.

EDGE = 2
"""Columns at each end of a row that hold whole numbers."""


class HiddenText(SmallText):
    """emitted: width of the emitted hidden states, at least 5. tokens: whether those of generated tokens are emitted too."""

    def __init__(self, emitted: int = 64, vocab: int = 61, positions: int = 96, *, tokens: bool = True) -> None:
        super().__init__(vocab, positions, payload=True)
        self.emitted, self.tokens = emitted, tokens
        self.projection = random_matrix(emitted - 2 * EDGE, WIDTH, torch.Generator().manual_seed(emitted))

    @property
    def shape(self) -> ArShape:
        shape = super().shape
        wider = shape.hidden_width + 1
        return replace(shape, input_width=wider, payload_width=self.emitted, emits_tokens=self.tokens)

    def _embed(self, ids_T: Tensor) -> Tensor:
        """The id goes along in a column of its own, which `forward` takes off again."""
        return torch.cat([super()._embed(ids_T), ids_T[:, None].float()], 1)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD = super().forward(x_TD[:, :-1], replace(batch, payload=None))
        if batch.payload is not None:
            batch.payload.store(self._emit(hidden_TD, batch.positions_PT[0], x_TD[:, -1]))
        return hidden_TD

    def _emit(self, hidden_TD: Tensor, positions_T: Tensor, ids_T: Tensor) -> Tensor:
        signature_T2 = torch.stack([positions_T.to(hidden_TD.dtype), ids_T.to(hidden_TD.dtype)], 1)
        return torch.cat([signature_T2, hidden_TD @ self.projection.T, signature_T2.flip(1)], 1)

    def emitted_whole(self, ids: Sequence[int]) -> Tensor:
        """The rows `[T, W]` of a sequence, in one piece, without a cache."""
        with torch.inference_mode():
            return self._emit(self.whole(ids), torch.arange(len(ids)), torch.tensor(list(ids)))


# The output of readers of hidden states for a row: a few numbers that differ from those of every other row.
#
# Shape legend: n rows, W the emitted width, N numbers of a reading.

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
        self.weights = nn.Buffer(torch.from_numpy(self.on_host.copy()))

    def forward(self, rows_nW: Tensor) -> Tensor:
        """`[n, N]`."""
        return torch.cat([rows_nW[:, :EDGE], rows_nW[:, -EDGE:], rows_nW[:, EDGE:-EDGE] @ self.weights], 1)

    def read(self, rows_nW: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same on the host."""
        return np.concatenate([rows_nW[:, :EDGE], rows_nW[:, -EDGE:], rows_nW[:, EDGE:-EDGE] @ self.on_host], 1)
