"""Whether an operation that has both takes its Triton kernel or plain torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_plain: ContextVar[bool] = ContextVar("plain", default=False)


def runs_kernel(tensor: Tensor) -> bool:
    """Whether an operation on `tensor` takes its Triton kernel: on a CUDA device, but inside `plain_torch`."""
    return tensor.is_cuda and not _plain.get()


@contextmanager
def plain_torch() -> Iterator[None]:
    """While entered, this thread's operations take their references on every device: what kernels are compared with."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)
