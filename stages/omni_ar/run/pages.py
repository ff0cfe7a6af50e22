"""The paged memory of a stage: keys and values, and payload pages with the same numbering."""

from dataclasses import dataclass

import torch
from torch import Tensor

from omni.device import Device
from omni_ar.attention import KVCache
from omni_ar.model import ArModel, CodecModel


@dataclass(frozen=True, slots=True)
class Pages:
    """hidden: `[blocks, block_size, payload_width]`. codes: int64 `[blocks, block_size, G]`. None where the model has none.

    Block 0 is the null block: it absorbs the writes of stopped rows.
    """

    kv: KVCache
    hidden: Tensor | None
    codes: Tensor | None

    @classmethod
    def allocate(cls, device: Device, model: ArModel, num_blocks: int, block_size: int, dtype: torch.dtype) -> "Pages":
        """num_blocks: excludes the null block."""
        shape = model.shape
        pages = (num_blocks + 1, block_size)
        groups = model.num_groups if isinstance(model, CodecModel) else 0
        return cls(
            KVCache.allocate(device.zeros, shape.num_layers, *pages, shape.num_kv_heads, shape.head_dim, dtype),
            device.zeros((*pages, shape.payload_width), dtype) if shape.payload_width else None,
            device.zeros((*pages, groups), torch.int64) if groups else None,
        )


def block_bytes(model: ArModel, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of device memory of one block."""
    shape = model.shape
    groups = model.num_groups if isinstance(model, CodecModel) else 0
    kv = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return block_size * ((kv + shape.payload_width) * dtype.itemsize + groups * torch.int64.itemsize)
