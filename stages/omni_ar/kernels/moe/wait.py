"""The wait of kernels after the router: see "Wait first" in `omni_ar.kernels.overlap`."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Waits, then lets the next kernel start."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
