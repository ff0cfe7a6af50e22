"""Sets of ids as bitmasks of int64: bit i of element m is id 64 * m + i."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BITS = 64


def bitmask_size(vocab: int) -> int:
    """Number of elements of a bitmask of ids below `vocab`."""
    return -(-vocab // _BITS)


def pack_bitmask(members_V: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The bitmask, int64 `[bitmask_size(V)]`, of a set with one bool per id."""
    mask = np.zeros(bitmask_size(members_V.size), "<i8")
    packed = np.packbits(members_V, bitorder="little")
    mask.view(np.uint8)[: packed.size] = packed
    return mask.astype(np.int64)


def unpack_bitmask(masks_nM: Tensor, vocab: int) -> Tensor:
    """Returns the sets as bool `[n, vocab]`, on the masks' device. The largest intermediate has one byte per id."""
    bytes_nB = masks_nM.view(torch.uint8)
    place_8 = torch.arange(8, dtype=torch.uint8, device=masks_nM.device)
    return ((bytes_nB[..., None] >> place_8) & 1).flatten(1)[:, :vocab].bool()
