"""Sorts (token, expert) pairs by expert and cuts each expert's pairs into blocks of rows. The host never reads their
number.

A matrix of tokens and experts holds the ranks. Sums over its columns count an expert's pairs, and running sums place
them. A program takes some tokens; for a decode step of few rows one program takes all.

All experts are ranked and weighted. Pairs of experts that are not held are left out: they have no position and no block.

Shape legend: B blocks of rows, C chunks of tokens; T here are the tokens of one chunk.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.moe.ranking import logit_of, lowest_of, ranking_keys
from omni_ar.kernels.moe.wait import wait_for_previous
from omni_ar.kernels.overlap import overlap_options, overlaps

# Maximum number of tokens for a single program, and tokens of each program beyond it. Choosing experts is a sequence of
# maxima over a chunk's tokens: short chunks in parallel finish sooner, although counting them takes another launch.
_ALONE, _CHUNK = 16, 8
_COUNTS = 32
"""Number of chunks whose counts are read at once."""


class Groups(NamedTuple):
    """Pairs of held experts in expert order, in blocks of at most `block_m` pairs of one expert.

    pair_S: int32, the pair (token * K + rank of the expert) at each sorted position; as long as there can be pairs of
    held experts, and undefined past the last. block_3B: int32, each block's expert (0 for the first held one), first
    sorted position, and the position after its expert's last; the expert is -1 from the first unused block on. B is an
    upper bound for every routing.
    """

    pair_S: Tensor
    block_3B: Tensor
    block_m: int


@triton.jit
def _ranks(
    logits_ptr,
    logits_stride,
    weight_ptr,
    expert_ptr,
    token_T1,
    tokens,
    E: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    ROUTE: tl.constexpr,
    E_PAD: tl.constexpr,
):
    """The rank of each expert among a token's experts, -1 for none. ROUTE: computes ranks from the logits and stores
    weights and experts; otherwise reads the stored experts."""
    e_1E = tl.arange(0, E_PAD)[None, :]
    inside_T1 = token_T1 < tokens
    rank_TE = tl.zeros_like(token_T1 + e_1E) - 1
    if ROUTE:
        inside_TE = inside_T1 & (e_1E < E)
        logits_TE = tl.load(logits_ptr + token_T1.to(tl.int64) * logits_stride + e_1E, mask=inside_TE, other=0.0)
        keys_TE = ranking_keys(logits_TE, e_1E, E)
        best_T1 = tl.max(keys_TE, axis=1, keep_dims=True)
        largest_T1 = logit_of(best_T1)
        share_TE = tl.where(e_1E < E, tl.exp(logits_TE.to(tl.float32) - largest_T1), 0.0)
        for k in tl.static_range(K):
            if k > 0:
                best_T1 = tl.max(tl.where(keys_TE < best_T1, keys_TE, lowest_of(keys_TE)), axis=1, keep_dims=True)
            rank_TE = tl.where(inside_T1 & (keys_TE == best_T1), k, rank_TE)
        total_T1 = tl.sum(tl.where(rank_TE >= 0, share_TE, 0.0) if NORM else share_TE, axis=1, keep_dims=True)
        total_T1 = tl.where(inside_T1, total_T1, 1.0)
        index_TE = token_T1 * K + rank_TE
        tl.store(weight_ptr + index_TE, share_TE / total_T1, mask=rank_TE >= 0)
        tl.store(expert_ptr + index_TE, tl.zeros_like(rank_TE) + e_1E, mask=rank_TE >= 0)
    else:
        for k in tl.static_range(K):
            expert_T1 = tl.load(expert_ptr + token_T1 * K + k, mask=inside_T1, other=-1)
            rank_TE = tl.where(expert_T1 == e_1E, k, rank_TE)
    return rank_TE


@triton.jit
def _held(rank_TE, first, E: tl.constexpr, HELD: tl.constexpr, E_PAD: tl.constexpr):
    """Ranks without those of experts that are not held."""
    if HELD < E:
        e_1E = tl.arange(0, E_PAD)[None, :]
        rank_TE = tl.where((e_1E >= first) & (e_1E < first + HELD), rank_TE, -1)
    return rank_TE


@triton.jit(do_not_specialize=["tokens", "first"])
def _count_kernel(
    logits_ptr,
    logits_stride,
    weight_ptr,
    expert_ptr,
    count_ptr,
    tokens,
    first,
    E: tl.constexpr,
    HELD: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    E_PAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Routes the tokens of a chunk. count_CE: number of the chunk's tokens per held expert, 0 for others."""
    wait_for_previous(OVERLAP)
    chunk = tl.program_id(0)
    token_T1 = (chunk * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    rank_TE = _ranks(logits_ptr, logits_stride, weight_ptr, expert_ptr, token_T1, tokens, E, K, NORM, True, E_PAD)
    rank_TE = _held(rank_TE, first, E, HELD, E_PAD)
    e = tl.arange(0, E_PAD)
    tl.store(count_ptr + chunk * E + e, tl.sum((rank_TE >= 0).to(tl.int32), axis=0), mask=e < E)


@triton.jit(do_not_specialize=["tokens", "first", "B"])
def _place_kernel(
    logits_ptr,
    logits_stride,
    weight_ptr,
    expert_ptr,
    count_ptr,
    pair_ptr,
    block_ptr,
    tokens,
    first,
    B,
    E: tl.constexpr,
    HELD: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    COUNTED: tl.constexpr,
    E_PAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Stores a chunk's pairs at their sorted positions; the first program stores all blocks. COUNTED: `_count_kernel`
    has routed the tokens."""
    wait_for_previous(OVERLAP)
    mine = tl.program_id(0)
    token_T1 = (mine * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    rank_TE = _ranks(
        logits_ptr, logits_stride, weight_ptr, expert_ptr, token_T1, tokens, E, K, NORM, not COUNTED, E_PAD
    )
    rank_TE = _held(rank_TE, first, E, HELD, E_PAD)
    chosen_TE = (rank_TE >= 0).to(tl.int32)
    e = tl.arange(0, E_PAD)
    before_E = tl.zeros([E_PAD], tl.int32)
    if COUNTED:
        count_E = tl.zeros([E_PAD], tl.int32)
        for start in range(0, tl.num_programs(0), BLOCK_C):
            chunk_C1 = (start + tl.arange(0, BLOCK_C))[:, None]
            inside_CE = (chunk_C1 < tl.num_programs(0)) & (e < E)[None, :]
            count_CE = tl.load(count_ptr + chunk_C1 * E + e[None, :], mask=inside_CE, other=0)
            count_E += tl.sum(count_CE, axis=0)
            before_E += tl.sum(tl.where(chunk_C1 < mine, count_CE, 0), axis=0)
    else:
        count_E = tl.sum(chosen_TE, axis=0)
    end_E = tl.cumsum(count_E, axis=0)
    first_E = end_E - count_E
    position_TE = (first_E + before_E)[None, :] + tl.cumsum(chosen_TE, axis=0) - 1
    tl.store(pair_ptr + position_TE, token_T1 * K + rank_TE, mask=rank_TE >= 0)

    if mine == 0:
        blocks_E = (count_E + BLOCK_M - 1) // BLOCK_M
        first_block_E = tl.cumsum(blocks_E, axis=0) - blocks_E
        for j in range(tl.max(blocks_E, axis=0)):
            block_ptrs = block_ptr + first_block_E + j
            tl.store(block_ptrs, e - first, mask=j < blocks_E)
            tl.store(block_ptrs + B, first_E + j * BLOCK_M, mask=j < blocks_E)
            tl.store(block_ptrs + 2 * B, end_E, mask=j < blocks_E)
        for start in range(tl.sum(blocks_E, axis=0), B, E_PAD):
            tl.store(block_ptr + start + e, -1, mask=start + e < B)


def route_and_group(
    logits_TE: Tensor, top_k: int, norm_topk: bool, block_m: int, first: int = 0, held: int | None = None
) -> tuple[Tensor, Tensor, Groups]:
    """Each token's `top_k` experts, as `route` returns them: weights `[T, K]`, float32, experts `[T, K]`, int32; and
    the pairs by expert.

    logits_TE: `[T, E]`, any floating dtype. Among equal logits, the first expert wins; NaN ranks below all other values.
    first, held: the experts whose pairs are grouped, from `first` on; None for all.
    """
    (tokens, experts), device = logits_TE.shape, logits_TE.device
    held = experts if held is None else held
    weight_TK = torch.empty(tokens, top_k, dtype=torch.float32, device=device)
    expert_TK = torch.empty(tokens, top_k, dtype=torch.int32, device=device)
    pairs = tokens * min(top_k, held)
    blocks = min(pairs, held) + pairs // block_m
    pair_S = torch.empty(pairs, dtype=torch.int32, device=device)
    block_3B = torch.empty(3, blocks, dtype=torch.int32, device=device)
    counted = tokens > _ALONE
    block_t = _CHUNK if counted else triton.next_power_of_2(tokens)
    chunks = triton.cdiv(tokens, block_t)
    padded = triton.next_power_of_2(experts)
    given = (logits_TE, logits_TE.stride(0), weight_TK, expert_TK)
    shape = {"E": experts, "HELD": held, "K": top_k, "NORM": norm_topk, "E_PAD": padded, "BLOCK_T": block_t}
    options = overlap_options(overlaps(logits_TE)) | {"num_warps": min(max(block_t * padded // 256, 1), 8)}
    count_CE = pair_S  # not read
    if counted:
        count_CE = torch.empty(chunks, experts, dtype=torch.int32, device=device)
        _count_kernel[(chunks,)](*given, count_CE, tokens, first, **shape, **options)
    _place_kernel[(chunks,)](
        *given,
        count_CE,
        pair_S,
        block_3B,
        tokens,
        first,
        blocks,
        COUNTED=counted,
        BLOCK_C=_COUNTS,
        BLOCK_M=block_m,
        **shape,
        **options,
    )
    return weight_TK, expert_TK, Groups(pair_S, block_3B, block_m)
