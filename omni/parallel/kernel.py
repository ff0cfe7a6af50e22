"""The sum of a small tensor over ranks, in one kernel: a rank writes its part into the memory of all, and sums what it was given.

| memory of a rank | written by | read by | free again |
|---|---|---|---|
| `data[slot, other]` | the other rank, in its call | this rank, in the same call | two calls later |
| `flags[other, program]` | the other rank, behind its data: its program's call | this rank, waiting for it | next call |
| `calls[program]` | this rank | this rank: how often the program ran | |

Two slots are enough: a rank writes a slot again two calls later. It has then seen the other rank in the call between, which that
rank begins when it has read the slot, since its calls are on one stream. The count of a program's calls is in device memory, so the
kernel can be captured.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Numbers per program."""
PROGRAMS = 512
"""Maximum programs of a call."""


def bytes_needed(size: int, most_bytes: int) -> int:
    """Bytes of a rank's memory, for sums of up to `most_bytes`."""
    return _data_start(size) + 2 * size * most_bytes


def _data_start(size: int) -> int:
    return -(-4 * PROGRAMS * (size + 1) // 512) * 512


def sum_over_ranks(x: Tensor, bases: Tensor, rank: int, size: int, most_bytes: int) -> Tensor:
    """Overwrites `x` by the sum over the ranks, added up in float32 in their order.

    x: contiguous, at most `most_bytes` and `BLOCK * PROGRAMS` numbers. bases: int64 `[size]`, the addresses here of the memory of
    all ranks, which was zeroed before the first call."""
    _push_and_sum[(triton.cdiv(x.numel(), BLOCK),)](
        x,
        bases,
        x.numel(),
        RANK=rank,
        SIZE=size,
        PROGRAMS=PROGRAMS,
        DATA_START=_data_start(size),
        PART=most_bytes // x.element_size(),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return x


@triton.jit(do_not_specialize=["count"])
def _push_and_sum(
    x_ptr,
    bases_ptr,
    count,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    DATA_START: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    own = tl.load(bases_ptr + RANK)
    calls_ptr = own.to(tl.pointer_type(tl.int32)) + SIZE * PROGRAMS + program
    call = tl.load(calls_ptr) + 1
    slot = (call & 1) * SIZE
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    for step in tl.static_range(1, SIZE):
        base = tl.load(bases_ptr + (RANK + step) % SIZE) + DATA_START
        data_ptr = base.to(tl.pointer_type(x_ptr.dtype.element_ty)) + (slot + RANK) * PART
        tl.store(data_ptr + at, x, mask=inside)
    # All threads have written before the first one raises the flags, which makes their writes visible to the other devices.
    tl.debug_barrier()
    for step in tl.static_range(1, SIZE):
        flags = tl.load(bases_ptr + (RANK + step) % SIZE)
        flag_ptr = flags.to(tl.pointer_type(tl.int32)) + RANK * PROGRAMS + program
        tl.atomic_xchg(flag_ptr, call, sem="release", scope="sys")
    for step in tl.static_range(1, SIZE):
        flag_ptr = own.to(tl.pointer_type(tl.int32)) + (RANK + step) % SIZE * PROGRAMS + program
        seen = tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")
        while seen - call < 0:  # the difference, since the numbers wrap around
            seen = tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")
    tl.debug_barrier()
    total = tl.zeros([BLOCK], tl.float32)
    data_ptr = (own + DATA_START).to(tl.pointer_type(x_ptr.dtype.element_ty)) + slot * PART + at
    for part in tl.static_range(SIZE):
        if part == RANK:
            total += x.to(tl.float32)
        else:
            total += tl.load(data_ptr + part * PART, mask=inside, other=0.0, volatile=True).to(tl.float32)
    tl.store(x_ptr + at, total.to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(calls_ptr, call)
