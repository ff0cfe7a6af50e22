"""FlashAttention as a backend, where it is installed: version 3 (`flash_attn_interface`), else version 2 (`flash_attn`).

Shape legend: T tokens, R decode rows, N rows of the stage, H query heads, D head width.
"""

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from omni_ar.attention.base import AttentionMetadata, KVCache

_VERSION_3, _VERSION_2 = "flash_attn_interface", "flash_attn"
_BLOCK_UNIT_2 = 256


class FlashAttention:
    """Attends all decode rows in one call, and each prefill row in one of its own. Lengths and tables are read on the device."""

    name = "flash_attention"
    captures_prefills = False

    def __init__(self) -> None:
        """Raises ModuleNotFoundError if it is not installed."""
        newest = find_spec(_VERSION_3) is not None
        self._with_cache = import_module(_VERSION_3 if newest else _VERSION_2).flash_attn_with_kvcache
        self._table_name = "page_table" if newest else "block_table"

    @staticmethod
    def problem(head_dim: int, dtype: torch.dtype, block_size: int) -> tuple[str, str] | None:
        """The unsupported property of a stage and the remedy; None if the stage is supported."""
        newest = find_spec(_VERSION_3) is not None
        if not newest and find_spec(_VERSION_2) is None:
            return "FlashAttention is not installed", 'install flash-attn, or use "triton"'
        if dtype not in (torch.bfloat16, torch.float16):
            return f"FlashAttention does not compute in {dtype}", 'use bfloat16, or "triton"'
        if head_dim % 8 or head_dim > 256:
            return f"FlashAttention has no head dimension {head_dim}", 'use "triton"'
        if not newest and block_size % _BLOCK_UNIT_2:
            problem = f"FlashAttention 2 needs blocks of a multiple of {_BLOCK_UNIT_2} tokens, not of {block_size}"
            return problem, f'set block_size to {_BLOCK_UNIT_2}, install FlashAttention 3, or use "triton"'
        return None

    def attend(self, q_THD: Tensor, cache: KVCache, layer: int, meta: AttentionMetadata) -> Tensor:
        count = meta.num_decode
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        if count:
            table_RM, lengths_R = meta.decode_block_table_RM, meta.decode_lengths_R
            out_THD[:count] = self._run(q_THD[:count, None], cache, layer, table_RM, lengths_R)[:, 0]
        if meta.prefills:
            assert meta.prefill_rows_P4 is not None
            lengths_P = meta.prefill_rows_P4[:, 2] + meta.prefill_rows_P4[:, 3]
            for index, row in enumerate(meta.prefills):
                tokens = slice(row.start, row.start + row.query_length)
                lengths_1, table_1M = lengths_P[index : index + 1], row.block_table_M[None]
                out_THD[tokens] = self._run(q_THD[None, tokens], cache, layer, table_1M, lengths_1)[0]
        return out_THD

    def _run(self, q_RQHD: Tensor, cache: KVCache, layer: int, table_RM: Tensor, lengths_R: Tensor) -> Tensor:
        """Attends the last Q tokens of each row, whose keys are in the cache: the causal mask ends at the row's last key."""
        table = {self._table_name: table_RM.to(torch.int32)}
        pages, lengths_R = (cache.key[layer], cache.value[layer]), lengths_R.to(torch.int32)
        y_RQHD: Tensor = self._with_cache(q_RQHD, *pages, cache_seqlens=lengths_R, causal=True, **table)
        return y_RQHD
