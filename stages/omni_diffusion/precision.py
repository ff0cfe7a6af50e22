"""Precision of float32 products on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """While entered, TF32 is allowed for all matrix products and convolutions, or for none.

    torch has one setting per process, so it is set during the launch of a phase: only the launching thread computes on
    a device. Captured launches keep the setting of their capture.
    """
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, convolutions.allow_tf32
    matrices.allow_tf32 = convolutions.allow_tf32 = tf32
    try:
        yield
    finally:
        matrices.allow_tf32, convolutions.allow_tf32 = before
