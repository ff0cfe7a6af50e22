"""FlashAttention as a backend, where it is installed: version 3 (`flash_attn_interface`), else version 2 (`flash_attn`).

Shape legend: T tokens, R decode rows, N rows of the stage, H query heads, D head width.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from omni.errors import ConfigError
from omni_ar.attention.base import AttentionMetadata, KVCache
from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures

_VERSION_3, _VERSION_2 = "flash_attn_interface", "flash_attn"
_BLOCK_UNIT_2 = 256


class FlashAttention:
    """Attends all decode rows in one call, and each prefill row in one of its own. Lengths and tables are read on the device."""

    name = "flash_attention"
    captures_prefills = False

    def __init__(self, field: str = "attention_backend") -> None:
        """field: the setting that selects the backend. Raises ModuleNotFoundError if it is not installed."""
        self._field = field
        newest = find_spec(_VERSION_3) is not None
        self._with_cache = import_module(_VERSION_3 if newest else _VERSION_2).flash_attn_with_kvcache
        self._table_name = "page_table" if newest else "block_table"
        self._version, self._lacks = ("3", {"alibi_slopes", "sinks"}) if newest else ("2", {"sinks"})

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

    def attend(
        self,
        q_THD: Tensor,
        cache: KVCache,
        layer: int,
        meta: AttentionMetadata,
        features: AttentionFeatures = PLAIN,
    ) -> Tensor:
        options, count = self._options(features), meta.num_decode
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        if count:
            table_RM, lengths_R = meta.decode_block_table_RM, meta.decode_lengths_R
            out_THD[:count] = self._run(q_THD[:count, None], cache, layer, table_RM, lengths_R, options)[:, 0]
        if meta.prefills:
            assert meta.prefill_rows_P4 is not None
            lengths_P = meta.prefill_rows_P4[:, 2] + meta.prefill_rows_P4[:, 3]
            for index, row in enumerate(meta.prefills):
                tokens = slice(row.start, row.start + row.query_length)
                lengths_1, table_1M = lengths_P[index : index + 1], row.block_table_M[None]
                out_THD[tokens] = self._run(q_THD[None, tokens], cache, layer, table_1M, lengths_1, options)[0]
        return out_THD

    def _options(self, features: AttentionFeatures) -> dict[str, Any]:
        """A layer's features as FlashAttention names them."""
        lacking = self._lacks.intersection(features.names)
        if lacking:
            problem = f"FlashAttention {self._version} has no {' and no '.join(sorted(lacking))}, which the model needs"
            raise ConfigError(self._field, problem, 'use "triton"')
        options: dict[str, Any] = {}
        if features.scale is not None:
            options["softmax_scale"] = features.scale
        if features.softcap is not None:
            options["softcap"] = features.softcap
        if features.alibi_slopes is not None:
            options["alibi_slopes"] = features.alibi_slopes
        if features.window is not None:
            options["window_size"] = (features.window - 1, 0)
        return options

    def _run(
        self,
        q_RQHD: Tensor,
        cache: KVCache,
        layer: int,
        table_RM: Tensor,
        lengths_R: Tensor,
        options: dict[str, Any],
    ) -> Tensor:
        """Attends the last Q tokens of each row, whose keys are in the cache: the causal mask ends at the row's last key."""
        table = {self._table_name: table_RM.to(torch.int32)}
        pages, lengths_R = (cache.key[layer], cache.value[layer]), lengths_R.to(torch.int32)
        y_RQHD: Tensor = self._with_cache(q_RQHD, *pages, cache_seqlens=lengths_R, causal=True, **table, **options)
        return y_RQHD
