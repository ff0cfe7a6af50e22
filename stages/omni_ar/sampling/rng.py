"""Counter-based random numbers: the same bits on every device and in every batch.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in int64 arithmetic, each 32-bit
word in a tensor of its own. torch has no unsigned 32-bit multiplication; no product here overflows a signed word.
"""

import torch
from torch import Tensor

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]
Words2 = tuple[Tensor, Tensor]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW16 = 0xFFFF
_LOW32 = 0xFFFFFFFF
_WORDS = 4
_GROUP_LIMIT = 1 << 16


def philox4x32(counter: Words4, key: Words2) -> Words4:
    """Four random 32-bit words per (counter, key). All words are int64 in [0, 2 ** 32) and broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW32, (k1 + _KEY_STEPS[1]) & _LOW32
    return c0, c1, c2, c3


def _multiply(word: Tensor, constant: int) -> Words2:
    """The high and low 32 bits of a product of two 32-bit words, by halves of 16 bits."""
    low = (word & _LOW16) * constant
    middle = (word >> 16) * constant + (low >> 16)
    return middle >> 16, ((middle & _LOW16) << 16) | (low & _LOW16)


def open_uniform(word: Tensor) -> Tensor:
    """32-bit words (int64) to fp32 in (0, 1), both ends excluded, in steps of 2 ** -32 near 0 and of 2 ** -24 near 1."""
    return (word.to(torch.float32) * 2.0**-32 + 2.0**-33).clamp(max=1.0 - 2.0**-24)


def gumbel(seed_R: Tensor, sample_index_R: Tensor, position_R: Tensor, group: int, purpose: int, vocab: int) -> Tensor:
    """Standard Gumbel noise, fp32 `[R, vocab]`: `argmax(logits + noise)` is a draw from `softmax(logits)`.

    Entry [r, v] is a function of the row's seed (int64), its sample index and position (int64 in [0, 2 ** 32)), `group`
    and `purpose` (each in [0, 2 ** 16)) and v only, independent of the row's place, the batch and the device.
    Raises ValueError for a group or purpose out of range. Source: Maddison et al., 2014, arXiv:1411.0030.
    """
    if not (0 <= group < _GROUP_LIMIT and 0 <= purpose < _GROUP_LIMIT):
        raise ValueError(f"group {group} and purpose {purpose} must be in [0, {_GROUP_LIMIT})")
    quad_Q = torch.arange(-(-vocab // _WORDS), device=seed_R.device)
    use_R1 = torch.full_like(position_R, group | purpose << 16)[:, None]
    counter = (quad_Q[None], position_R[:, None], sample_index_R[:, None], use_R1)
    key = ((seed_R & _LOW32)[:, None], (seed_R >> 32 & _LOW32)[:, None])
    words_RV = torch.stack(philox4x32(counter, key), dim=-1).flatten(1)[:, :vocab]
    # log1p of the small side: large noise, which wins the argmax, comes from uniforms near 0, where they are finest.
    return -(-torch.log1p(-open_uniform(words_RV))).log()
