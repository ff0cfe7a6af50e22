"""A barrier of all programs of a kernel, which is launched with `launch_cooperative_grid`: all of them are on the device.

Arrival and wait are apart. A fence completes the loads before it, so what is to be loaded meanwhile is loaded between them.
"""

import triton
import triton.language as tl


@triton.jit
def arrive(counter_ptr, program, PROGRAMS: tl.constexpr, WAITS: tl.constexpr):
    """Makes what the program has stored visible to those that wait. Returns a value for `wait`.

    counter: uint32, zero before its first use, and of one kernel at a time. A barrier adds 2 ** 31 to it in all, so its top
    bit turns when the last program arrives, and no launch needs to reset it.

    One thread arrives and waits; the program's own barriers order the accesses of the others.
    """
    before = tl.full([], 0, tl.int32)
    if WAITS:
        tl.debug_barrier()
        before = tl.inline_asm_elementwise(
            """{
            .reg .pred leader;
            .reg .pred first;
            .reg .b32 thread;
            .reg .b32 step;
            mov.u32 thread, %tid.x;
            setp.eq.u32 leader, thread, 0;
            sub.u32 step, 0x80000001, $3;
            setp.eq.u32 first, $2, 0;
            selp.b32 step, step, 1, first;
            mov.u32 $0, 0;
            @leader atom.add.release.gpu.global.u32 $0, [$1], step;
            }""",
            "=&r,l,r,r",
            [counter_ptr.to(tl.int64), program, tl.full([], PROGRAMS, tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    return before


@triton.jit
def wait(counter_ptr, before, WAITS: tl.constexpr):
    """Returns when every program has arrived. before: from `arrive`."""
    if WAITS:
        tl.inline_asm_elementwise(
            """{
            .reg .pred other;
            .reg .pred same;
            .reg .b32 thread;
            .reg .b32 now;
            mov.u32 thread, %tid.x;
            setp.ne.u32 other, thread, 0;
            @other bra ARRIVED;
            WAITING:
            ld.acquire.gpu.global.u32 now, [$1];
            xor.b32 now, now, $2;
            setp.ge.s32 same, now, 0;
            @same bra WAITING;
            ARRIVED:
            mov.u32 $0, 0;
            }""",
            "=&r,l,r",
            [counter_ptr.to(tl.int64), before],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.debug_barrier()


@triton.jit
def here(x, COMPILES: tl.constexpr):
    """`x`, used no earlier than here. The compiler moves the layout conversion of a matrix product's operand up to its load, whose
    data it then waits for: past other loads, and past a barrier."""
    if COMPILES:
        if x.dtype.primitive_bitwidth == 16:
            x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
        else:
            x = tl.inline_asm_elementwise("mov.f32 $0, $1;", "=f,f", [x], dtype=x.dtype, is_pure=False, pack=1)
    return x
