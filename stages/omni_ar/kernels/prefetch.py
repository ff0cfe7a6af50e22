"""Prefetches into the L2 cache what is read soon, while the current kernel leaves the memory idle."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import triton
import triton.language as tl
from torch import Tensor

# With more rows the products are no longer bound by reading their weights.
_MOST_ROWS = 64
# A part of the L2 cache: the rest is for the step's own data.
_MOST_BYTES = 24 << 20
_LINE = 128

_disabled: ContextVar[bool] = ContextVar("disabled", default=False)


@contextmanager
def no_prefetch() -> Iterator[None]:
    """While entered, this thread's kernels do not prefetch: the baseline of measurements."""
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def prefetches() -> bool:
    """Whether kernels prefetch."""
    return not _disabled.get()


def prefetch_bytes(weight: Tensor | None, rows: int, overlap: bool) -> int:
    """Bytes of `weight` that a kernel over `rows` rows prefetches: a multiple of 128, 0 for none."""
    if weight is None or not overlap or rows > _MOST_ROWS or not prefetches():
        return 0
    return min(weight.nbytes, _MOST_BYTES) // _LINE * _LINE


@triton.jit
def prefetch_l2(weight_ptr, program, programs, BYTES: tl.constexpr):
    """Starts the copy of the program's share of the `BYTES` at `weight_ptr`, without waiting. All programs together
    copy all bytes."""
    if BYTES > 0:
        share = tl.cdiv(BYTES, programs * 128) * 128
        start = program * share
        size = tl.minimum(BYTES - start, share)
        # One thread issues one instruction; the copy engine does the rest.
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


@triton.jit
def prefetch_rows_l2(row_ptrs, bytes_of_rows):
    """Starts the copies of rows in global memory, without waiting. bytes_of_rows: multiples of 16, 0 for none; int32, of the shape
    of `row_ptrs`. With as many rows as threads each is copied once."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        setp.gt.s32 some, $2, 0;
        @some cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [row_ptrs.to(tl.int64), bytes_of_rows],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
