"""Cases of kernels: the call, the number of sets of buffers, and the bytes and operations that the call needs at least.

Shape legend: T tokens, R rows, D width, X = queries, keys and values, I intermediate width, E experts, K experts per token,
N blocks, B slots of a block, H query heads, W head width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.floors import uniform_experts
from bench.kernel_shapes import KernelSizes, LayerShape
from omni_ar.kernels.activation import silu_and_mul
from omni_ar.kernels.attention import attend_decodes, attend_prompts
from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures, alibi_slopes
from omni_ar.kernels.frame import attend_frame
from omni_ar.kernels.linear import gated_linear, linear, linear_parts, norm_linear
from omni_ar.kernels.moe import Experts, Norm, SharedExpert, mix_experts
from omni_ar.kernels.norm import add_rms_norm, rms_norm
from omni_ar.kernels.rope import HeadNorms, qk_norm_rope_write, rotary_table

Call = Callable[[], object]
_BLOCK = 16
_EPS = 1e-6
_POSITIONS = 4
"""Of a row with drafts."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """make: builds one call on buffers of its own. bytes, flops: of one call, at the least. big: bytes of what must come from
    memory each time (weights, keys and values): with them buffers are rotated until they fill more than the L2 cache. Activations
    of a few rows stay there, as they do in a step."""

    name: str
    make: Callable[[], Call]
    bytes: float
    flops: float = 0.0
    big: float = 0.0


class Buffers:
    """Random tensors of one dtype on one device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.item = dtype.itemsize

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype) * scale

    def randint(self, below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, device=self.device)

    def arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.device)


def cases(sizes: KernelSizes, buffers: Buffers) -> Iterator[KernelCase]:
    """All cases except sampling and step."""
    for tokens in (sizes.rows[0], sizes.rows[-1], sizes.prompt):
        yield from _norms(sizes.thinker, tokens, buffers)
        yield from _rope(sizes.thinker, tokens, buffers)
        yield _activation(sizes.dense, tokens, buffers)
    for shape in (sizes.dense, sizes.thinker):
        for rows in sizes.rows:
            yield _decode(shape, rows, sizes.length, buffers)
        yield _prefill(shape, sizes.prompt, buffers)
    yield from _features(sizes, buffers)
    for rows, length in ((1, sizes.length), (1, 16 * sizes.length), (8, 16 * sizes.length)):
        yield _decode(sizes.thinker, rows, length, buffers, positions=_POSITIONS)
        yield _decode(sizes.thinker, rows, length, buffers, positions=_POSITIONS, shares=False)
    for rows in (*sizes.rows, sizes.prompt):
        yield _mixture(sizes.thinker, rows, buffers)
    for rows in sizes.rows:
        yield _mixture(sizes.talker, rows, buffers)
    for rows in sizes.rows[:2]:
        yield from _linears(sizes, rows, buffers)
    yield _frame(sizes.predictor, sizes.rows[0], buffers)


def _norms(shape: LayerShape, tokens: int, b: Buffers) -> Iterator[KernelCase]:
    width = shape.width

    def alone() -> Call:
        return partial(rms_norm, b.randn(tokens, width), b.randn(width), _EPS)

    def added() -> Call:
        return partial(add_rms_norm, b.randn(tokens, width), b.randn(tokens, width), b.randn(width), _EPS)

    yield KernelCase(f"rms_norm {tokens} x {width}", alone, 2 * tokens * width * b.item)
    yield KernelCase(f"add_rms_norm {tokens} x {width}", added, 4 * tokens * width * b.item)


def _rope(shape: LayerShape, tokens: int, b: Buffers) -> Iterator[KernelCase]:
    head, blocks = shape.head_dim, tokens // _BLOCK + 2
    axes = b.randint(3, head // 2)
    frequency = torch.rand(head // 2, device=b.device)

    def table() -> Call:
        positions = b.randint(1000, 3, tokens)
        return lambda: rotary_table(positions, frequency, axes, b.dtype)

    def write() -> Call:
        cos, sin = rotary_table(b.randint(1000, 3, tokens), frequency, axes, b.dtype)
        norms = HeadNorms(b.randn(head), b.randn(head), _EPS)
        key, value = (b.randn(blocks, _BLOCK, shape.kv_heads, head) for _ in range(2))
        slots, qkv = b.arange(tokens) + _BLOCK, b.randn(tokens, shape.qkv)
        return lambda: qk_norm_rope_write(qkv, norms, cos, sin, shape.heads, key, value, slots)

    yield KernelCase(f"rotary_table {tokens} x {head}", table, 2 * tokens * head * b.item)
    yield KernelCase(f"qk_norm_rope_write {shape.name}, {tokens}", write, 2 * tokens * (shape.qkv + head) * b.item)


def _activation(shape: LayerShape, tokens: int, b: Buffers) -> KernelCase:
    def make() -> Call:
        return partial(silu_and_mul, b.randn(tokens, 2 * shape.mlp_width))

    return KernelCase(f"silu_and_mul {tokens} x {shape.mlp_width}", make, 3 * tokens * shape.mlp_width * b.item)


def _features(sizes: KernelSizes, b: Buffers) -> Iterator[KernelCase]:
    """Cases of attention features: each at the sizes of plain attention, and a long context with and without a window."""
    shape, rows, window, long = sizes.thinker, sizes.rows[:2][-1], sizes.length, 16 * sizes.length
    yield _decode(shape, rows, long, b)
    yield _decode(shape, rows, long, b, AttentionFeatures(window=window))
    yield _prefill(shape, sizes.prompt, b, AttentionFeatures(window=sizes.prompt // 4))
    for features in (
        AttentionFeatures(softcap=50.0),
        AttentionFeatures(alibi_slopes=alibi_slopes(shape.heads, b.device)),
        AttentionFeatures(sinks=b.randn(shape.heads)),
    ):
        yield _decode(shape, rows, sizes.length, b, features)
        yield _prefill(shape, sizes.prompt, b, features)


def _named(features: AttentionFeatures) -> str:
    return "".join(f", {name}" for name in features.names)


def _decode(
    shape: LayerShape,
    rows: int,
    length: int,
    b: Buffers,
    features: AttentionFeatures = PLAIN,
    positions: int = 1,
    shares: bool = True,
) -> KernelCase:
    """positions: of each row, one for its newest token and one for each draft. shares: whether a program loads keys for several."""
    per_row = -(-length // _BLOCK)

    def make() -> Call:
        key, value = (b.randn(rows * per_row + 1, _BLOCK, shape.kv_heads, shape.head_dim) for _ in range(2))
        # As long as a captured step's: rows know their own lengths.
        table = torch.zeros(rows, 8 * per_row, dtype=torch.int64, device=b.device)
        table[:, :per_row] = 1 + torch.randperm(rows * per_row, device=b.device).view(rows, per_row)
        table = table.repeat_interleave(positions, 0)
        q = b.randn(rows * positions, shape.heads, shape.head_dim)
        lengths, out = b.arange(positions).repeat(rows) + (length - positions + 1), torch.empty_like(q)
        finished_splits = torch.zeros(rows * positions * shape.kv_heads, dtype=torch.int32, device=b.device)
        most, together = table.shape[1] * _BLOCK, positions if shares else 1
        return lambda: attend_decodes(q, key, value, table, lengths, most, finished_splits, out, features, together)

    read = length if features.window is None else min(length, features.window)
    size = 2 * rows * read * shape.kv_heads * shape.head_dim * b.item
    name = f"attend_decodes {shape.name}, {rows} x {length}{_named(features)}"
    if positions > 1:
        name += f", {positions} positions {'together' if shares else 'apart'}"
    return KernelCase(name, make, size, big=size)


def _prefill(shape: LayerShape, tokens: int, b: Buffers, features: AttentionFeatures = PLAIN) -> KernelCase:
    blocks = -(-tokens // _BLOCK)

    def make() -> Call:
        key, value = (b.randn(blocks + 1, _BLOCK, shape.kv_heads, shape.head_dim) for _ in range(2))
        table = 1 + torch.randperm(blocks, device=b.device)[None]
        q = b.randn(tokens, shape.heads, shape.head_dim)
        row, out = torch.tensor([[0, 0, tokens, 0]], device=b.device), torch.empty_like(q)
        return lambda: attend_prompts(q, key, value, table, row, 0, out, features)

    # Two products, half of the square each; without the triangle that is before the windows.
    before = 0 if features.window is None else max(tokens - features.window, 0)
    flops = 2 * (tokens * tokens - before * before) * shape.heads * shape.head_dim
    size = 2 * tokens * (shape.heads + shape.kv_heads) * shape.head_dim * b.item
    return KernelCase(f"attend_prompts {shape.name}, {tokens}{_named(features)}", make, size, flops)


def _mixture(shape: LayerShape, rows: int, b: Buffers) -> KernelCase:
    width, inner, top_k, shared = shape.width, shape.expert_width, shape.top_k, shape.shared_width

    def weight(*sizes: int) -> Tensor:
        return b.randn(*sizes, scale=sizes[-1] ** -0.5)

    def make() -> Call:
        own = SharedExpert(weight(2 * shared, width), weight(width, shared), weight(1, width)) if shared else None
        every = (weight(shape.experts, width), weight(shape.experts, 2 * inner, width))
        experts = Experts(*every, weight(shape.experts, width, inner), top_k, True, own)
        x, delta, norm = b.randn(rows, width), b.randn(rows, width), Norm(b.randn(width), _EPS)
        return lambda: mix_experts(x, delta, norm, experts)

    one, always = 3 * width * inner, width * (shape.experts + 3 * shared)
    size = (uniform_experts(shape.experts, top_k, rows) * one + always + 4 * rows * width) * b.item
    whole = (shape.experts * one + always) * b.item
    return KernelCase(f"mix_experts {shape.name}, {rows}", make, size, 2 * rows * (top_k * one + always), big=whole)


def _linears(sizes: KernelSizes, rows: int, b: Buffers) -> Iterator[KernelCase]:
    dense, thinker, talker = sizes.dense, sizes.thinker, sizes.talker
    outputs: Sequence[tuple[str, int, int]] = (
        (f"{thinker.name} o_proj", thinker.heads * thinker.head_dim, thinker.width),
        (f"{dense.name} lm_head", dense.width, dense.vocab),
        (f"{thinker.name} lm_head", thinker.width, thinker.vocab),
    )
    for name, inputs, count in outputs:
        make = _linear(linear, rows, inputs, count, b)
        yield KernelCase(f"linear {name}, {rows}", make, *_product(rows, inputs, count, b))
    for name, inputs in (("o_proj", dense.heads * dense.head_dim), ("down_proj", dense.mlp_width)):
        make = _linear(linear_parts, rows, inputs, dense.width, b)
        product = _product(rows, inputs, dense.width, b)
        yield KernelCase(f"linear_parts {dense.name} {name}, {rows}", make, *product)
    make = _linear(gated_linear, rows, talker.width, 2 * talker.shared_width, b)
    product = _product(rows, talker.width, 2 * talker.shared_width, b)
    yield KernelCase(f"gated_linear {talker.name} shared expert, {rows}", make, *product)
    for shape in (dense, thinker):
        make = _norm_linear(rows, shape.width, shape.qkv, b, gated=False)
        yield KernelCase(f"norm_linear {shape.name} qkv, {rows}", make, *_product(rows, shape.width, shape.qkv, b))
    make = _norm_linear(rows, dense.width, 2 * dense.mlp_width, b, gated=True)
    product = _product(rows, dense.width, 2 * dense.mlp_width, b)
    yield KernelCase(f"norm_linear gated {dense.name}, {rows}", make, *product)


def _product(rows: int, inputs: int, outputs: int, b: Buffers) -> tuple[float, float, float]:
    """Bytes, operations, and bytes of the weights."""
    weights = inputs * outputs * b.item
    return weights + rows * (inputs + outputs) * b.item, 2 * rows * inputs * outputs, weights


def _linear(
    run: Callable[[Tensor, Tensor], Tensor], rows: int, inputs: int, outputs: int, b: Buffers
) -> Callable[[], Call]:
    return lambda: partial(run, b.randn(rows, inputs), b.randn(outputs, inputs, scale=inputs**-0.5))


def _norm_linear(rows: int, inputs: int, outputs: int, b: Buffers, *, gated: bool) -> Callable[[], Call]:
    def make() -> Call:
        x, delta, norm = b.randn(rows, inputs), b.randn(rows, inputs), b.randn(inputs)
        weight = b.randn(outputs, inputs, scale=inputs**-0.5)
        return lambda: norm_linear(x, delta, norm, _EPS, weight, gated=gated)

    return make


def _frame(shape: LayerShape, rows: int, b: Buffers) -> KernelCase:
    head, groups, start = shape.head_dim, 16, 8

    def make() -> Call:
        cos, sin = rotary_table(b.arange(groups)[None], torch.rand(head // 2, device=b.device), None, b.dtype)
        norms = HeadNorms(b.randn(head), b.randn(head), _EPS)
        key, value = (b.randn(rows, groups, shape.kv_heads, head) for _ in range(2))
        qkv = b.randn(rows, shape.qkv)
        return lambda: attend_frame(qkv, norms, cos, sin, start, shape.heads, key, value)

    size = rows * (shape.qkv + shape.heads * head + 2 * (start + 1) * shape.kv_heads * head) * b.item
    return KernelCase(f"attend_frame {shape.name}, {rows}, ninth token", make, size)
