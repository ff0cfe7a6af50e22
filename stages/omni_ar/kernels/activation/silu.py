"""The SiLU activation, for kernels that end in it."""

import triton
import triton.language as tl


@triton.jit
def silu(gate):
    """`gate * sigmoid(gate)` in fp32. The argument of exp is never positive, so it does not overflow."""
    decay = tl.exp(-tl.abs(gate))
    sigmoid = tl.where(gate >= 0, 1.0, decay) / (1 + decay)
    return gate * sigmoid
