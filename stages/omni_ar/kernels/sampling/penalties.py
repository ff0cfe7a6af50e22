"""Penalties, biases and masks of a row, in the order and with the bits of `omni_ar.sampling.penalties`."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.constants import (
    ANYTHING,
    BAD_WORDS,
    BIAS,
    BIASED_IDS,
    FORBIDDEN,
    MAX_LOGIT,
    MIN_TOKENS,
    PENALTY,
    REPETITION,
    SOME_IDS,
    STOP_IDS,
    WORD_LENGTH,
    WORDS,
)

_WORDS_AT_ONCE = tl.constexpr(64)
_STOPS = tl.constexpr(32)


@triton.jit
def sanitized(x):
    """Does what `omni_ar.sampling.penalties.sanitize` does."""
    return tl.minimum(tl.where(x == x, x, float("-inf")), MAX_LOGIT)


@triton.jit
def penalized(
    x,
    start,
    row,
    needs,
    position,
    work_ptr,
    parameters,
    vocab,
    drafts_ptr,
    before,
    BLOCK: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """x: logits of ids from `start` on. parameters: as `Pointers`. work_ptr: fp32, one value per id of the row; written
    for penalties that name ids. drafts_ptr: the row's DRAFTS drafts, of which the first `before` are its newest tokens here."""
    ids = start + tl.arange(0, BLOCK)
    inside = ids < vocab
    if (needs & REPETITION) != 0:
        penalty = tl.load(parameters.repetition_penalty + row)
        seen = tl.load(parameters.seen + row * (vocab + 1) + ids, mask=inside, other=0)
        for index in tl.static_range(DRAFTS):
            drafted = (ids == tl.load(drafts_ptr + index)) & (index < before)
            seen = tl.where(drafted, 1, seen)
        x = tl.where(seen != 0, tl.where(x < 0, x * penalty, tl.div_rn(x, penalty)), x)
    if (needs & PENALTY) != 0:
        count = tl.load(parameters.counts + row * (vocab + 1) + ids, mask=inside, other=0).to(tl.float32)
        for index in tl.static_range(DRAFTS):
            count += ((ids == tl.load(drafts_ptr + index)) & (index < before)).to(tl.float32)
        presence = tl.where(count > 0, tl.load(parameters.presence_penalty + row), 0.0)
        x = x - (count * tl.load(parameters.frequency_penalty + row) + presence)
    if (needs & FORBIDDEN) != 0:
        forbidden = tl.load(parameters.forbidden + row * vocab + ids, mask=inside, other=0)
        x = tl.where(forbidden != 0, float("-inf"), x)
    if (needs & SOME_IDS) != 0:
        # These name ids, and registers are not addressable, so the values pass through memory. A masked id stays masked
        # after a bias.
        tl.store(work_ptr + ids, x, mask=inside)
        tl.debug_barrier()
        if (needs & BIAS) != 0:
            _add_biases(work_ptr, start, row, parameters, BLOCK)
            tl.debug_barrier()
        if (needs & BAD_WORDS) != 0:
            _mask_words(work_ptr, start, row, parameters, drafts_ptr, before, BLOCK, DRAFTS)
        if ((needs & MIN_TOKENS) != 0) & (position < tl.load(parameters.min_tokens + row)):
            _mask_stops(work_ptr, start, row, parameters, BLOCK)
        tl.debug_barrier()
        x = tl.load(work_ptr + ids, mask=inside, other=float("-inf"))
    return x


@triton.jit
def _add_biases(work_ptr, start, row, parameters, BLOCK: tl.constexpr):
    at = row * BIASED_IDS + tl.arange(0, BIASED_IDS)
    ids = tl.load(parameters.bias_ids + at)
    bias = tl.load(parameters.biases + at)
    # Padding is id 0 with bias 0. Without padding each id occurs once, so no two lanes write the same entry.
    here = (ids >= start) & (ids < start + BLOCK) & (bias != 0)
    tl.store(work_ptr + ids, tl.load(work_ptr + ids, mask=here, other=0.0) + bias, mask=here)


@triton.jit
def _mask_words(work_ptr, start, row, parameters, drafts_ptr, before, BLOCK: tl.constexpr, DRAFTS: tl.constexpr):
    letter = tl.arange(0, WORD_LENGTH)[None, :]
    if DRAFTS:
        source = letter + before
        kept = tl.load(parameters.recent + row * WORD_LENGTH + source, mask=source < WORD_LENGTH, other=0)
        fresh = tl.load(drafts_ptr + source - WORD_LENGTH, mask=source >= WORD_LENGTH, other=0)
        recent = tl.where(source < WORD_LENGTH, kept, fresh)
    else:
        recent = tl.load(parameters.recent + row * WORD_LENGTH + letter)
    for first in range(0, WORDS, _WORDS_AT_ONCE):
        word = (row * WORDS + first + tl.arange(0, _WORDS_AT_ONCE)) * (WORD_LENGTH + 1)
        others = tl.load(parameters.bad_words + word[:, None] + letter)
        last = tl.load(parameters.bad_words + word + WORD_LENGTH)
        fits = (others == recent) | (others == ANYTHING)
        matches = tl.min(fits.to(tl.int32), axis=1) != 0
        tl.store(work_ptr + last, float("-inf"), mask=matches & (last >= start) & (last < start + BLOCK))


@triton.jit
def _mask_stops(work_ptr, start, row, parameters, BLOCK: tl.constexpr):
    at = tl.arange(0, _STOPS)
    ids = tl.load(parameters.stop_ids + row * STOP_IDS + at, mask=at < STOP_IDS, other=-1)
    tl.store(work_ptr + ids, float("-inf"), mask=(ids >= start) & (ids >= 0) & (ids < start + BLOCK))
