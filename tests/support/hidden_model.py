"""A small text model that emits a hidden state of any width for every token, and the same states computed the long way.

A row of it says where it comes from, exactly: position and token id stand at its beginning and at its end. What lies between is a
projection of what the layers made of everything before, so a row that is torn, stale or another's is told from the right one.

Shape legend: T tokens, D the model's width, W the emitted width.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from omni_ar.model import ArShape, Batch
from support.small_text import WIDTH, SmallText, random_matrix

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
