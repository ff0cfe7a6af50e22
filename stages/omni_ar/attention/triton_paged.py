"""The backend of this project's Triton kernels.

Shape legend: T tokens, H query heads, D head width.
"""

import torch
from torch import Tensor

from omni.device import Device
from omni_ar.attention.base import AttentionMetadata, KVCache
from omni_ar.kernels.attention import attend_decodes, attend_prompts
from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures

_SPLIT_ROWS = 8192
"""Rows times key heads of the largest batch in which the last split to finish adds the parts up. A larger batch keeps
every SM busy: its rows are split only if the settings say so, and a second kernel adds the parts up."""


class TritonPagedAttention:
    """Launches at most two kernels: one for all decode rows, and one for all prefill rows, which it reads on the device. One
    instance serves one stream, since consecutive launches count finished splits in the same memory."""

    name = "triton"
    captures_prefills = True

    def __init__(self, device: Device) -> None:
        self._finished_splits = device.zeros((_SPLIT_ROWS,), torch.int32)

    def attend(
        self,
        q_THD: Tensor,
        cache: KVCache,
        layer: int,
        meta: AttentionMetadata,
        features: AttentionFeatures = PLAIN,
    ) -> Tensor:
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        if meta.num_decode:
            self.attend_decodes(q_THD, cache, layer, meta, out_THD, features)
        if meta.prefill_rows_P4 is not None:
            assert meta.block_table_NM is not None
            key, value, first = cache.key[layer], cache.value[layer], meta.num_decode
            table_NM, rows_P4 = meta.block_table_NM, meta.prefill_rows_P4
            attend_prompts(q_THD, key, value, table_NM, rows_P4, first, out_THD, features)
        return out_THD

    def attend_decodes(
        self,
        q_THD: Tensor,
        cache: KVCache,
        layer: int,
        meta: AttentionMetadata,
        out_THD: Tensor,
        features: AttentionFeatures = PLAIN,
    ) -> None:
        """The decode rows' part of `attend`, into `out_THD`."""
        count, pages = meta.num_decode, (cache.key[layer], cache.value[layer])
        table_RM, lengths_R, longest = meta.decode_block_table_RM, meta.decode_lengths_R, meta.decode_max_length
        out_RHD = out_THD[:count]
        attend_decodes(
            q_THD[:count],
            *pages,
            table_RM,
            lengths_R,
            longest,
            self._finished_splits,
            out_RHD,
            features,
            meta.decode_positions,
        )
