"""The rotation of heads, for kernels that rotate."""

import triton
import triton.language as tl


@triton.jit
def rotated(x_hF, y_hF, cos_1F, sin_1F, dtype: tl.constexpr):
    """Rotates pairs of fp32 halves of heads by fp32 tables, rounding to `dtype` where separate operations would
    round. Compiled for an H200, some results still differ from theirs by one rounding."""
    rotated_x_hF = (x_hF * cos_1F).to(dtype).to(tl.float32) - (y_hF * sin_1F).to(dtype).to(tl.float32)
    rotated_y_hF = (y_hF * cos_1F).to(dtype).to(tl.float32) + (x_hF * sin_1F).to(dtype).to(tl.float32)
    return rotated_x_hF.to(dtype), rotated_y_hF.to(dtype)
