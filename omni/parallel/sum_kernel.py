"""Sums of small tensors over ranks: each rank writes its part into the memory of all others, and reads theirs from its own.

| memory of a rank | written by | read by | free again |
|---|---|---|---|
| `data[slot, other]` | the other rank in its call; this rank, which empties it | this rank, in the same call | two calls later |
| `state` | this rank: calls, and programs of the current one | this rank | |

A number is its own flag: where the bits are 0 none has arrived, and a zero is sent as -0. So a sum takes the time of
one write to another device. No order of writes matters: a program polls the numbers that it adds up, and each is written and read
as a whole. (The kernels of TensorRT-LLM with a "Lamport" workspace work alike.)

Calls alternate between two slots, which is enough. A rank's call n + 2 writes where call n did. It begins when call n + 1 is
complete, which has read numbers of every other rank's call n + 1. Those were sent by a kernel that began after the other rank's
call n, which had read and emptied the slot. This holds for calls of any sizes, dtypes and tiles, if all programs of a call use the
same slot. So the state is one for all programs, and is in device memory: the kernel can be captured.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Numbers that one program adds up."""
_DATA = tl.constexpr(512)
"""Bytes before the data: the state is an int32."""
_CALL_BIT = tl.constexpr(16)
_CALL = tl.constexpr(2**16)
"""A call adds 2**16 to the state, and has fewer programs."""


def bytes_needed(size: int, most_bytes: int) -> int:
    """Bytes of a rank's memory, for tensors of up to `most_bytes`. It is zeroed before the first call."""
    return int(_DATA) + 2 * size * most_bytes


def all_reduce(x: Tensor, bases: Tensor, rank: int, most_bytes: int) -> Tensor:
    """Overwrites `x`, contiguous, by the sum over the ranks. bases: as for `tile_sum`."""
    grid = (triton.cdiv(x.numel(), BLOCK),)
    constants = {"RANK": rank, "SIZE": len(bases), "MOST_BYTES": most_bytes, "BLOCK": BLOCK}
    _all_reduce[grid](x, bases, x.numel(), **constants, num_warps=4)
    return x


@triton.jit  # specialized: a thread moves 16 bytes at once where 16 divides `count`
def _all_reduce(
    x_ptr,
    bases_ptr,
    count,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    MOST_BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    total = tile_sum(x, at, inside, bases_ptr, tl.load(bases_ptr + RANK), RANK, SIZE, MOST_BYTES)
    tl.store(x_ptr + at, total.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def tile_sum(x, at, inside, bases_ptr, own, RANK: tl.constexpr, SIZE: tl.constexpr, MOST_BYTES: tl.constexpr):
    """The sum over the ranks of a tile: float32, added up in their order, 0 outside.

    Every program of a launch calls it once, when the kernels before are complete. The grid has one dimension.
    x: this rank's part. at: indexes of its numbers in the tensor, which has up to `MOST_BYTES` bytes. inside: mask of the numbers
    in the tensor; each is in one tile. bases_ptr: int64 `[SIZE]`, addresses of the memory of each rank in this process; no kernel
    writes them. own: the address of this rank's memory."""
    WORD: tl.constexpr = tl.int32 if x.dtype.primitive_bitwidth == 32 else tl.int16
    MINUS_ZERO: tl.constexpr = -(2 ** (x.dtype.primitive_bitwidth - 1))
    state_ptr = own.to(tl.pointer_type(tl.int32))
    slot = (tl.load(state_ptr, volatile=True) >> _CALL_BIT) & 1
    word = x.to(WORD, bitcast=True)
    word = tl.where(word == 0, tl.full(word.shape, MINUS_ZERO, WORD), word)
    for step in tl.static_range(1, SIZE):
        base = tl.load(bases_ptr + (RANK + step) % SIZE)
        tl.store(_data(base, slot * SIZE + RANK, WORD, MOST_BYTES) + at, word, mask=inside)
    # After the barrier all threads have read the state. The additions of all programs sum to one call, those of some to less: a
    # program that reads the state before the last addition finds the same call.
    tl.debug_barrier()
    first = tl.program_id(0) == 0
    tl.atomic_add(state_ptr, tl.where(first, 1 - tl.num_programs(0) + _CALL, 1), sem="relaxed", scope="gpu")
    total = tl.zeros(x.shape, tl.float32)
    for rank in tl.static_range(SIZE):
        if rank == RANK:
            total += tl.where(inside, x.to(tl.float32), 0.0)
        else:
            data_ptr = _data(own, slot * SIZE + rank, WORD, MOST_BYTES) + at
            word = tl.load(data_ptr, mask=inside, other=0, volatile=True)
            while tl.max((inside & (word == 0)).to(tl.int32)) > 0:
                word = tl.load(data_ptr, mask=inside, other=0, volatile=True)
            # The condition is of all threads: each has read its numbers.
            tl.store(data_ptr, tl.zeros_like(word), mask=inside)
            total += word.to(x.dtype, bitcast=True).to(tl.float32)
    return total


@triton.jit
def _data(base, index, WORD: tl.constexpr, MOST_BYTES: tl.constexpr):
    """The address of a rank's numbers in the memory at `base`. index: of slot and rank."""
    return tl.multiple_of((base + _DATA + index * MOST_BYTES).to(tl.pointer_type(WORD)), 16)
