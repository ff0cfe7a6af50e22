"""One request through a decoder by hand: for models whose conditioning no stage can bring yet.

Shape legend: T tokens, D width, V vocabulary, P rotary axes.
"""

import torch
from torch import Tensor

from omni_ar.attention import AttentionMetadata, KVCache, PrefillRow, TorchPagedAttention
from omni_ar.model import ArModel, Batch, PayloadSink, PlacedEmbedding

_BLOCK, _BLOCKS = 8, 64


class OneRow:
    """A model and its cache; blocks in descending order, so that no slot is its token's place. payload: pages, if it emits any."""

    def __init__(self, model: ArModel) -> None:
        shape = model.shape
        self._model = model
        self._cache = KVCache.allocate(
            lambda size, dtype: torch.zeros(size, dtype=dtype),
            shape.num_layers,
            _BLOCKS + 1,
            _BLOCK,
            shape.num_kv_heads,
            shape.head_dim,
            torch.float32,
        )
        self._table = torch.arange(_BLOCKS, 0, -1)
        self.pages = torch.zeros(_BLOCKS + 1, _BLOCK, shape.payload_width)
        self.length = 0

    @torch.no_grad()
    def run(self, x_TD: Tensor, positions_PT: Tensor, embeddings: tuple[PlacedEmbedding, ...] = ()) -> Tensor:
        """The next tokens: a decode if it is one, else a chunk of a prompt. Logits `[T, V]`."""
        places = torch.arange(self.length, self.length + len(x_TD))
        slots_T = self._slots(places)
        decodes = int(len(x_TD) == 1)
        table, context = self._table[None], self.length
        self.length += len(x_TD)
        prefills = () if decodes else (PrefillRow(0, len(x_TD), context, self._table),)
        meta = AttentionMetadata(
            slots_T, decodes, table[:decodes], torch.tensor([self.length])[:decodes], self.length, prefills
        )
        payload = PayloadSink(self.pages, slots_T) if self.pages.shape[2] else None
        batch = Batch(positions_PT, meta, self._cache, TorchPagedAttention(), 0, embeddings, payload)
        return self._model.logits(self._model(x_TD, batch))

    @property
    def payload(self) -> Tensor:
        """`[T, width]`, of all tokens so far."""
        return self.pages.flatten(0, 1)[self._slots(torch.arange(self.length))]

    def _slots(self, places: Tensor) -> Tensor:
        return self._table[places // _BLOCK] * _BLOCK + places % _BLOCK
