"""Counter-based random numbers: the same bits on every device and in every batch.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in int64 arithmetic. torch has
no unsigned multiplication: a word is multiplied by the multiplier less 2 ** 32, which overflows no signed word, has the low 32
bits of the product, and lacks the word itself in the high ones.
"""

import torch
from torch import Tensor

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]
Words2 = tuple[Tensor, Tensor]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF
_WORDS = 4
_GROUP_LIMIT = 1 << 16


def philox4x32(counter: Words4, key: Words2) -> Words4:
    """Four random 32-bit words per (counter, key). All words are int64 in [0, 2 ** 32), of one number of dimensions, and broadcast
    together.

    The two products of a round are one operation, on words 0 and 2. A round leaves them in exchanged places, so that multipliers
    and keys alternate instead; an even number of rounds restores the places."""
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    even, odd = torch.stack((c0, c2)), torch.stack((c1, c3))
    multiplier, key_step = (_pair(numbers, even) for numbers in (_MULTIPLIERS, _KEY_STEPS))
    rounds = torch.arange(_ROUNDS, device=even.device).view(-1, *[1] * even.dim())
    keys = (torch.stack(key) + key_step * rounds) & _LOW32
    places = ((multiplier, keys.flip(1).unbind()), (multiplier.flip(0), keys.unbind()))
    for number in range(_ROUNDS):
        factor, round_keys = places[number % 2]
        product = even * factor
        even, odd = ((product >> 32) + even) ^ odd.flip(0) ^ round_keys[number], product & _LOW32
    return even[0], odd[0], even[1], odd[1]


def _pair(numbers: tuple[int, int], like: Tensor) -> Tensor:
    """Two integers `[2, 1, ...]` that broadcast with `like`, made without a copy from the host."""
    first, second = numbers
    return (torch.arange(2, device=like.device) * (second - first) + first).view(2, *[1] * (like.dim() - 1))


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
