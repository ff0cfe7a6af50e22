"""Runs a kernel with the fault that a tool of compute-sanitizer is there to find: `python scripts/planted_fault.py memcheck`.

A tool that reports nothing here checks nothing.
"""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def read_past_the_end(x_ptr, y_ptr, FAR: tl.constexpr):
    tl.store(y_ptr, tl.load(x_ptr + FAR))


@triton.jit
def write_one_cell(y_ptr, THREADS: tl.constexpr):
    """Every thread writes its number to the same word of shared memory, and nobody waits for anybody."""
    number = tl.arange(0, THREADS)
    read = tl.inline_asm_elementwise(
        """{
        .shared .align 4 .b32 cell;
        st.volatile.shared.b32 [cell], $1;
        ld.volatile.shared.b32 $0, [cell];
        }""",
        "=r,r",
        [number],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(y_ptr + number, read)


def main() -> None:
    tool = sys.argv[1] if len(sys.argv) == 2 else None
    if tool not in ("memcheck", "racecheck"):
        sys.exit(f"{sys.argv[0]}: name memcheck or racecheck")
    y = torch.zeros(256, dtype=torch.int32, device="cuda")
    if tool == "memcheck":
        read_past_the_end[(1,)](torch.zeros(16, dtype=torch.int32, device="cuda"), y, FAR=1 << 30)
    else:
        write_one_cell[(1,)](y, THREADS=256, num_warps=8)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
