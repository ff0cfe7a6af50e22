"""How products of float32 are multiplied on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Within, matrix products and convolutions may be rounded to TF32, or none is.

    torch keeps it for the whole process, so it is set for as long as a phase is launched: the thread that launches is the only one
    that computes on a device. Launches that are captured keep what they were captured with.
    """
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, convolutions.allow_tf32
    matrices.allow_tf32 = convolutions.allow_tf32 = tf32
    try:
        yield
    finally:
        matrices.allow_tf32, convolutions.allow_tf32 = before
