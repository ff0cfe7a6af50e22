"""Sets of ids as bits, 64 to an int64 word: bit i of word w is id 64 * w + i."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORD = 64


def bit_words(vocab: int) -> int:
    """Words that a set of ids below `vocab` takes."""
    return -(-vocab // _WORD)


def pack_bits(members_V: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A set given as one bool per id, int64 `[bit_words(V)]`."""
    words = np.zeros(bit_words(members_V.size), "<i8")
    packed = np.packbits(members_V, bitorder="little")
    words.view(np.uint8)[: packed.size] = packed
    return words.astype(np.int64)


def unpack_bits(words_nW: Tensor, vocab: int) -> Tensor:
    """Sets as bool `[n, vocab]`, on the words' device. The widest intermediate has one byte per id."""
    bytes_nB = words_nW.view(torch.uint8)
    place_8 = torch.arange(8, dtype=torch.uint8, device=words_nW.device)
    return ((bytes_nB[..., None] >> place_8) & 1).flatten(1)[:, :vocab].bool()
