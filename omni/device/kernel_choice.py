"""The choice between an operation's Triton kernel and its torch reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_plain: ContextVar[bool] = ContextVar("plain", default=False)


def runs_kernel(tensor: Tensor) -> bool:
    """Whether an operation on `tensor` runs its Triton kernel: on a CUDA device, outside `plain_torch`."""
    return tensor.is_cuda and not _plain.get()


@contextmanager
def plain_torch() -> Iterator[None]:
    """While entered, this thread's operations run their references on every device, for comparison with kernels."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)
