"""Few rows: vector products for each (token, expert) pair, without sorting, and with the routing inside.

The kernels are memory bound: a program loads its whole tile of weights before it needs the first of them, and each
multiprocessor runs several programs. Tokens that share an expert find its rows in L2, because programs of the same rows
run side by side. Each program computes its token's experts itself, which takes less time than the wait for a separate kernel.

A token's slots are its K experts, then parts of the shared expert, each as wide as a routed one. Slots of experts that are not
held read no weights and write no result.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.moe.experts import Experts, Norm
from omni_ar.kernels.moe.ranking import expert_of, logit_of, next_key, ranking_keys
from omni_ar.kernels.moe.router import Routed, route_few
from omni_ar.kernels.moe.settings import FewProduct, FewSettings
from omni_ar.kernels.moe.wait import wait_for_previous
from omni_ar.kernels.overlap import overlap_options, overlaps


@triton.jit(do_not_specialize=["first"])
def _few_gate_up(
    x_ptr,
    logits_ptr,
    gate_up_ptr,
    shared_ptr,
    hidden_ptr,
    x_stride,
    logits_stride,
    first,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    E: tl.constexpr,
    HELD: tl.constexpr,
    K: tl.constexpr,
    SHARED: tl.constexpr,
    E_PAD: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """hidden = silu(gate(x)) * up(x) for one slot and BLOCK_I rows of its expert. SHARED: the shared expert's width. Of E experts,
    HELD are held, from `first` on."""
    wait_for_previous(OVERLAP)
    SLOTS: tl.constexpr = K + (SHARED + I - 1) // I
    token = (tl.program_id(0) // SLOTS).to(tl.int64)
    slot = tl.program_id(0) % SLOTS
    expert = _expert_of_slot(logits_ptr, logits_stride, token, tl.where(slot < K, slot, 0), E, E_PAD)
    if HELD < E:
        expert -= first
        if (slot < K) & ((expert < 0) | (expert >= HELD)):
            return
    weights_ptr = gate_up_ptr + expert.to(tl.int64) * (2 * I * D)
    rows = I
    to_up = I * D
    if SHARED:
        first = tl.maximum(slot - K, 0) * I
        weights_ptr = tl.where(slot < K, weights_ptr, shared_ptr + first * D)
        rows = tl.where(slot < K, I, tl.minimum(I, SHARED - first))
        to_up = tl.where(slot < K, I * D, SHARED * D)
    i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    d = tl.arange(0, BLOCK_D)
    # Rows past the end are computed and not stored.
    gate_ptrs = weights_ptr + tl.minimum(i, rows - 1)[:, None] * D + d[None, :]
    up_ptrs = gate_ptrs + to_up
    x_ptrs = x_ptr + token * x_stride + d
    gate_ID, up_ID = _gate_and_up(gate_ptrs, up_ptrs, x_ptrs, d, D, BLOCK_I, BLOCK_D)
    # Rounded where a matrix product would have been.
    dtype = hidden_ptr.dtype.element_ty
    gate_I = tl.sum(gate_ID, axis=1).to(dtype).to(tl.float32)
    up_I = tl.sum(up_ID, axis=1).to(dtype).to(tl.float32)
    silu_I = (gate_I / (1 + tl.exp(-gate_I))).to(dtype).to(tl.float32)
    tl.store(hidden_ptr + tl.program_id(0).to(tl.int64) * I + i, (silu_I * up_I).to(dtype), mask=i < rows)


@triton.jit
def _expert_of_slot(logits_ptr, logits_stride, token, slot, E: tl.constexpr, E_PAD: tl.constexpr):
    """The expert of `token` with rank `slot`."""
    e = tl.arange(0, E_PAD)
    keys = ranking_keys(tl.load(logits_ptr + token * logits_stride + e, mask=e < E, other=0.0), e, E)
    best = tl.max(keys, axis=0)
    for _ in range(slot):
        best = next_key(keys, best)
    return expert_of(best)


@triton.jit
def _gate_and_up(gate_ptrs, up_ptrs, x_ptrs, d, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_D: tl.constexpr):
    """Products of weights and inputs, summed over steps of BLOCK_D; the result is a tile that is still to be summed."""
    gate_ID = tl.zeros([BLOCK_I, BLOCK_D], tl.float32)
    up_ID = tl.zeros([BLOCK_I, BLOCK_D], tl.float32)
    for start in tl.static_range(0, D, BLOCK_D):
        if start + BLOCK_D <= D:
            gate = tl.load(gate_ptrs + start, eviction_policy="evict_first")
            up = tl.load(up_ptrs + start, eviction_policy="evict_first")
            x = tl.load(x_ptrs + start)
        else:
            inside = start + d < D
            gate = tl.load(gate_ptrs + start, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            up = tl.load(up_ptrs + start, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            x = tl.load(x_ptrs + start, mask=inside, other=0.0)
        x = x.to(tl.float32)[None, :]
        gate_ID += gate.to(tl.float32) * x
        up_ID += up.to(tl.float32) * x
    return gate_ID, up_ID


@triton.jit(do_not_specialize=["first"])
def _few_down(
    hidden_ptr,
    logits_ptr,
    down_ptr,
    shared_ptr,
    y_ptr,
    logits_stride,
    first,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    E: tl.constexpr,
    HELD: tl.constexpr,
    K: tl.constexpr,
    SHARED: tl.constexpr,
    NORM: tl.constexpr,
    E_PAD: tl.constexpr,
    SLOTS_PAD: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """y_TD: BLOCK_D outputs of one token, summed over its slots, which are consecutive in a tile's rows."""
    SLOTS: tl.constexpr = K + (SHARED + I - 1) // I
    token = tl.program_id(0).to(tl.int64)
    # The router's logits are complete, since `_few_gate_up` waits for them before it lets this kernel start. So the
    # first weights can be loaded before the hidden values are complete.
    slot_R, expert_R, weight_R = _experts_of_slots(
        logits_ptr, logits_stride, token, E, K, NORM, E_PAD, SLOTS_PAD, BLOCK_D
    )
    held_R = slot_R < SLOTS
    if HELD < E:
        expert_R -= first
        held_R = held_R & ((slot_R >= K) | ((expert_R >= 0) & (expert_R < HELD)))

    d_R = tl.program_id(1) * BLOCK_D + tl.arange(0, SLOTS_PAD * BLOCK_D) % BLOCK_D
    row_R = tl.minimum(d_R, D - 1)
    weights_R = down_ptr + (expert_R.to(tl.int64) * D + row_R) * I
    if SHARED:
        gate = tl.load(logits_ptr + token * logits_stride + E).to(tl.float32)
        weight_R = tl.where(slot_R < K, weight_R, 1 / (1 + tl.exp(-gate)))
        weights_R = tl.where(slot_R < K, weights_R, shared_ptr + row_R * SHARED + tl.maximum(slot_R - K, 0) * I)
    if I % 16 == 0 and SHARED % 16 == 0:
        weights_R = tl.multiple_of(weights_R, 16)  # the compiler cannot derive it from a choice between two matrices
    i = tl.arange(0, BLOCK_I)
    down_ptrs = weights_R[:, None] + i[None, :]
    hidden_ptrs = hidden_ptr + (token * SLOTS + slot_R)[:, None] * I + i[None, :]
    inside = _inside(slot_R, held_R, i, I, K, SHARED)
    down = tl.load(down_ptrs, mask=inside, other=0.0, eviction_policy="evict_first")
    wait_for_previous(OVERLAP)
    y_RI = tl.zeros([SLOTS_PAD * BLOCK_D, BLOCK_I], tl.float32)
    for start in tl.static_range(0, I, BLOCK_I):
        if start > 0:
            inside = _inside(slot_R, held_R, start + i, I, K, SHARED)
            down = tl.load(down_ptrs + start, mask=inside, other=0.0, eviction_policy="evict_first")
        hidden = tl.load(hidden_ptrs + start, mask=inside, other=0.0)
        y_RI += down.to(tl.float32) * hidden.to(tl.float32)
    y_R = tl.where(held_R, tl.sum(y_RI, axis=1) * weight_R, 0.0)
    y_D = tl.sum(tl.reshape(y_R, [SLOTS_PAD, BLOCK_D]), axis=0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    tl.store(y_ptr + token * D + d, y_D.to(y_ptr.dtype.element_ty), mask=d < D)


@triton.jit
def _experts_of_slots(
    logits_ptr,
    logits_stride,
    token,
    E: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    E_PAD: tl.constexpr,
    SLOTS_PAD: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The slot of each row of a tile, and the expert and weight of `token` in that slot; past slot K, those of slot
    0."""
    e = tl.arange(0, E_PAD)
    logits = tl.load(logits_ptr + token * logits_stride + e, mask=e < E, other=0.0)
    keys = ranking_keys(logits, e, E)
    best = tl.max(keys, axis=0)
    largest = logit_of(best)
    slot_R = tl.arange(0, SLOTS_PAD * BLOCK_D) // BLOCK_D
    expert_R = tl.zeros([SLOTS_PAD * BLOCK_D], tl.int32) + expert_of(best)
    weight_R = tl.zeros([SLOTS_PAD * BLOCK_D], tl.float32) + 1.0
    total = largest - largest + 1.0
    for k in tl.static_range(1, K):
        best = next_key(keys, best)
        weight = tl.exp(logit_of(best) - largest)
        expert_R = tl.where(slot_R == k, expert_of(best), expert_R)
        weight_R = tl.where(slot_R == k, weight, weight_R)
        total += weight
    if not NORM:
        total = tl.sum(tl.where(e < E, tl.exp(logits.to(tl.float32) - largest), 0.0), axis=0)
    return slot_R, expert_R, weight_R / total


@triton.jit
def _inside(slot_R, held_R, i, I: tl.constexpr, K: tl.constexpr, SHARED: tl.constexpr):  # noqa: E741
    """The mask of existing columns of held slots. Separate conditions for slot and column keep the loads wide."""
    inside = held_R[:, None] & (i < I)[None, :]
    if SHARED % I:
        inside = inside & ((slot_R < K)[:, None] | ((slot_R - K)[:, None] * I + i[None, :] < SHARED))
    return inside


def multiply_gate_up_few(routed: Routed, experts: Experts, settings: FewProduct) -> Tensor:
    """`silu(gate(x)) * up(x)` of each slot, `[T * slots, I]`."""
    tokens, width = routed.normed_TD.shape
    intermediate = experts.down_EDI.shape[2]
    shared = 0 if experts.shared is None else experts.shared.down_DI.shape[1]
    slots = experts.top_k + triton.cdiv(shared, intermediate)
    hidden_SI = routed.normed_TD.new_empty(tokens * slots, intermediate)
    # Slots vary first: tokens that share an expert's rows read them within microseconds of one another.
    _few_gate_up[(tokens * slots, triton.cdiv(intermediate, settings.i))](
        routed.normed_TD,
        routed.logits_TN,
        experts.gate_up_EXD,
        experts.gate_up_EXD if experts.shared is None else experts.shared.gate_up_XD,
        hidden_SI,
        routed.normed_TD.stride(0),
        routed.logits_TN.stride(0),
        experts.first,
        D=width,
        I=intermediate,
        E=experts.num_experts,
        HELD=experts.num_held,
        K=experts.top_k,
        SHARED=shared,
        E_PAD=triton.next_power_of_2(experts.num_experts),
        BLOCK_I=settings.i,
        BLOCK_D=settings.d,
        **overlap_options(overlaps(hidden_SI)),
        num_warps=settings.warps,
    )
    return hidden_SI


def multiply_down_few(hidden_SI: Tensor, routed: Routed, experts: Experts, settings: FewProduct) -> Tensor:
    """The weighted sum of `down(hidden)`, `[T, D]`."""
    tokens = routed.logits_TN.shape[0]
    width, intermediate = experts.down_EDI.shape[1:]
    shared = 0 if experts.shared is None else experts.shared.down_DI.shape[1]
    y_TD = hidden_SI.new_empty(tokens, width)
    _few_down[(tokens, triton.cdiv(width, settings.d))](
        hidden_SI,
        routed.logits_TN,
        experts.down_EDI,
        experts.down_EDI if experts.shared is None else experts.shared.down_DI,
        y_TD,
        routed.logits_TN.stride(0),
        experts.first,
        D=width,
        I=intermediate,
        E=experts.num_experts,
        HELD=experts.num_held,
        K=experts.top_k,
        SHARED=shared,
        NORM=experts.norm_topk,
        E_PAD=triton.next_power_of_2(experts.num_experts),
        SLOTS_PAD=triton.next_power_of_2(hidden_SI.shape[0] // tokens),
        BLOCK_D=settings.d,
        BLOCK_I=settings.i,
        **overlap_options(overlaps(hidden_SI)),
        num_warps=settings.warps,
    )
    return y_TD


def mix_few(
    x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts, settings: FewSettings
) -> tuple[Tensor, Tensor]:
    """Does what `mix_experts` does, for few tokens."""
    routed = route_few(x_TD, delta_TD, norm, experts)
    hidden_SI = multiply_gate_up_few(routed, experts, settings.gate)
    return multiply_down_few(hidden_SI, routed, experts, settings.down), routed.sum_TD
