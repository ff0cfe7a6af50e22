"""One request through a decoder by hand.

Shape legend: T tokens, D width, V vocabulary, P rotary axes.
"""

import torch
from torch import Tensor

from omni_ar.attention import AttentionMetadata, KVCache, PrefillRow, TorchPagedAttention
from omni_ar.model import ArModel, Batch

_BLOCK, _BLOCKS = 8, 64


class OneRow:
    """A model and its cache; blocks in descending order, so that no slot is its token's place."""

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
        self._length = 0

    @torch.no_grad()
    def run(self, x_TD: Tensor, positions_PT: Tensor) -> Tensor:
        """The next tokens: a decode if it is one, else a chunk of a prompt. Logits `[T, V]`."""
        context, self._length = self._length, self._length + len(x_TD)
        places = torch.arange(context, self._length)
        slots_T = self._table[places // _BLOCK] * _BLOCK + places % _BLOCK
        decodes = int(len(x_TD) == 1)
        prefills = () if decodes else (PrefillRow(0, len(x_TD), context, self._table),)
        table, lengths = self._table[None][:decodes], torch.tensor([self._length])[:decodes]
        meta = AttentionMetadata(slots_T, decodes, table, lengths, self._length, prefills)
        batch = Batch(
            positions_PT=positions_PT,
            attention=meta,
            cache=self._cache,
            backend=TorchPagedAttention(),
            prompt_start=0,
            embeddings=(),
            payload=None,
        )
        return self._model.logits(self._model(x_TD, batch))
