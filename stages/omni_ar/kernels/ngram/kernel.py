"""The kernel of `propose_ngrams`, one program per row."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def propose_ngrams(
    text_NL: Tensor,
    rows_R: Tensor,
    length_N: Tensor,
    fewest: int,
    most: int,
    vocab: int,
    drafts_NK: Tensor,
    proposed_N: Tensor,
) -> None:
    _propose[(rows_R.shape[0],)](
        text_NL,
        rows_R,
        length_N,
        length_N.stride(0),
        vocab,
        drafts_NK,
        proposed_N,
        proposed_N.stride(0),
        TEXT=text_NL.shape[1],
        FEWEST=fewest,
        MOST=most,
        DRAFTS=drafts_NK.shape[1],
        BLOCK=min(triton.next_power_of_2(text_NL.shape[1]), _BLOCK),
        num_warps=4,
    )


@triton.jit(
    do_not_specialize=["length_stride", "proposed_stride", "vocab"],
    do_not_specialize_on_alignment=["rows_ptr", "length_ptr", "proposed_ptr"],
)
def _propose(
    text_ptr,
    rows_ptr,
    length_ptr,
    length_stride,
    vocab,
    drafts_ptr,
    proposed_ptr,
    proposed_stride,
    TEXT: tl.constexpr,
    FEWEST: tl.constexpr,
    MOST: tl.constexpr,
    DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.load(rows_ptr + tl.program_id(0))
    known = (tl.load(length_ptr + row * length_stride) + 1).to(tl.int32)
    row_ptr = text_ptr + row * TEXT
    best = tl.full([BLOCK], -1, tl.int64)
    for first in range(0, known, BLOCK):
        position = first + tl.arange(0, BLOCK)
        matching = position < known
        matched = tl.zeros([BLOCK], tl.int64)
        for back in tl.static_range(1, MOST + 1):
            newest = tl.load(row_ptr + known - back, mask=known >= back, other=-1)
            matching = matching & (position >= back)
            before = tl.load(row_ptr + position - back, mask=matching, other=-1)
            matching = matching & (before == newest)
            matched += matching.to(tl.int64)
        best = tl.maximum(best, tl.where(matched >= FEWEST, matched * TEXT + position, -1))
    longest = tl.max(best)
    position = tl.maximum(longest, 0) % TEXT
    period = tl.maximum(known - position, 1)
    proposed = tl.full([], 0, tl.int64)
    is_id = longest >= 0
    for index in tl.static_range(DRAFTS):
        at = tl.minimum(position + index % period, TEXT - 1)
        token = tl.load(row_ptr + at).to(tl.int64)
        tl.store(drafts_ptr + row * DRAFTS + index, token)
        is_id = is_id & (token >= 0) & (token < vocab)
        proposed += is_id.to(tl.int64)
    tl.store(proposed_ptr + row * proposed_stride, proposed)
