"""FlashInfer as a backend, where it is installed.

Shape legend: T tokens, P prefill rows, H query heads, D head width.
"""

from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, cycle

import torch
from torch import Tensor

from omni.device import Device
from omni.errors import ConfigError
from omni_ar.attention.base import AttentionMetadata, KVCache, PrefillRow
from omni_ar.attention.triton_paged import TritonPagedAttention
from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures
from omni_ar.options import MAX_IN_FLIGHT

_WORKSPACE_BYTES = 128 * 1024 * 1024
_PLANS = MAX_IN_FLIGHT + 1
"""Maximum number of steps whose plans are in flight: a step is launched only after the step this many before it has been read."""

_HEAD_DIMS = (64, 128, 256)


class FlashInferAttention:
    """Attends prefill rows by FlashInfer, and decode rows by this project's kernels.

    FlashInfer plans on the host, from exact lengths. The host knows the lengths of prefill rows, and their steps are
    not captured. Only the device knows the exact length of a decode row, and a captured step cannot be planned again,
    so decode rows have no plan and their graphs serve rows of any length. One plan serves all layers of a step. A plan
    includes all fields of `AttentionFeatures`, which vary from layer to layer, so layers with any are refused.

    A plan is copied to the device from its wrapper's host memory, in stream order. Consecutive steps therefore use the
    wrappers in turn: no wrapper is planned again before its last plan has been copied.
    """

    name = "flashinfer"
    captures_prefills = False

    def __init__(self, device: Device, field: str = "attention_backend") -> None:
        """field: the setting that selects the backend. Raises ModuleNotFoundError if it is not installed."""
        self._field = field
        workspace = device.zeros((_WORKSPACE_BYTES,), torch.uint8)
        wrapper = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
        # The workspace is used in stream order, so wrappers share it; each wrapper has its own plan.
        self._wrappers = cycle([wrapper(workspace, "NHD") for _ in range(_PLANS)])
        self._prefill = next(self._wrappers)
        self._decode = TritonPagedAttention(device)
        self._planned: AttentionMetadata | None = None

    @staticmethod
    def problem(head_dim: int, dtype: torch.dtype) -> tuple[str, str] | None:
        """The unsupported property of a stage and the remedy; None if the stage is supported."""
        if find_spec("flashinfer") is None:
            return "FlashInfer is not installed", 'install flashinfer-python, or use "triton"'
        if dtype not in (torch.bfloat16, torch.float16):
            return f"FlashInfer does not compute in {dtype}", 'use bfloat16, or "triton"'
        if head_dim not in _HEAD_DIMS:
            return f"FlashInfer has no head dimension {head_dim}", 'use "triton"'
        return None

    def attend(
        self,
        q_THD: Tensor,
        cache: KVCache,
        layer: int,
        meta: AttentionMetadata,
        features: AttentionFeatures = PLAIN,
    ) -> Tensor:
        if features.names:
            problem = f"is used without {' and without '.join(features.names)}, which the model needs"
            raise ConfigError(self._field, f"FlashInfer {problem}", 'use "triton"')
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        if meta.num_decode:
            self._decode.attend_decodes(q_THD, cache, layer, meta, out_THD)
        if meta.prefills:
            if self._planned is not meta:
                self._plan(q_THD, cache, meta.prefills)
                self._planned = meta
            first = meta.num_decode
            pages = (cache.key[layer], cache.value[layer])
            self._prefill.run(q_THD[first:].contiguous(), pages, out=out_THD[first:])
        return out_THD

    def _plan(self, q_THD: Tensor, cache: KVCache, rows: tuple[PrefillRow, ...]) -> None:
        self._prefill = next(self._wrappers)
        size = cache.block_size
        lengths = [row.context_length + row.query_length for row in rows]
        blocks = [-(-length // size) for length in lengths]
        self._prefill.plan(
            _words([0, *accumulate(row.query_length for row in rows)]),
            _words([0, *accumulate(blocks)]),
            torch.cat([row.block_table_M[:used] for row, used in zip(rows, blocks, strict=True)]).to(torch.int32),
            _words([(length - 1) % size + 1 for length in lengths]),
            q_THD.shape[1],
            cache.key.shape[3],
            q_THD.shape[2],
            size,
            causal=True,
            q_data_type=q_THD.dtype,
            kv_data_type=cache.key.dtype,
        )


def _words(values: list[int]) -> Tensor:
    """A host tensor: FlashInfer plans on the host and would wait for a device tensor."""
    return torch.tensor(values, dtype=torch.int32)
