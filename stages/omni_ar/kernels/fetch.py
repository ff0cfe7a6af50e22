"""Weights of the next product, on their way to the L2 cache while a kernel before it does what leaves the memory idle."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import triton
import triton.language as tl
from torch import Tensor

# With more rows the products are no longer bound by reading their weights.
_MOST_ROWS = 64
# A part of the L2 cache that leaves room for what the step itself is about.
_MOST_BYTES = 24 << 20
_LINE = 128

_nothing: ContextVar[bool] = ContextVar("nothing", default=False)


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """While entered, this thread's kernels fetch nothing ahead: what fetching is measured against."""
    token = _nothing.set(True)
    try:
        yield
    finally:
        _nothing.reset(token)


def fetch_bytes(weight: Tensor | None, rows: int, overlap: bool) -> int:
    """How much of `weight` a kernel over so many rows fetches ahead: 0 where it does not. A multiple of 128."""
    if weight is None or not overlap or rows > _MOST_ROWS or _nothing.get():
        return 0
    return min(weight.nbytes, _MOST_BYTES) // _LINE * _LINE


@triton.jit
def fetch_ahead(weight_ptr, program, programs, BYTES: tl.constexpr):
    """Begins to fetch the share of `program` of the `BYTES` at `weight_ptr`, and does not wait. All programs together fetch all."""
    if BYTES > 0:
        share = tl.cdiv(BYTES, programs * 128) * 128
        start = program * share
        size = tl.minimum(BYTES - start, share)
        # One instruction of one thread: the copy engine does the rest.
        tl.inline_asm_elementwise(
            """{
            .reg .pred chosen;
            .reg .pred some;
            .reg .b32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 chosen, thread, 0;
            setp.gt.and.s32 some, $2, 0, chosen;
            @some cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r",
            [weight_ptr.to(tl.int64) + start, size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
