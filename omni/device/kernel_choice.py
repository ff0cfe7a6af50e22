"""The choice between an operation's Triton kernel and its torch reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_plain: ContextVar[bool] = ContextVar("plain", default=False)
_chosen: ContextVar[torch.device | None] = ContextVar("chosen", default=None)


def runs_kernel(tensor: Tensor) -> bool:
    """Whether an operation on `tensor` runs its Triton kernel: on a CUDA device, outside `plain_torch`."""
    return (tensor.is_cuda or kernel_device(tensor).type == "cuda") and not _plain.get()


def kernel_device(tensor: Tensor) -> torch.device:
    """The device that kernels on `tensor` are chosen for: its own, except inside `kernels_of`."""
    return _chosen.get() or tensor.device


@contextmanager
def kernels_of(device: torch.device) -> Iterator[None]:
    """While entered, operations of this thread choose the kernels of `device`, wherever their tensors are: for launches that
    are only recorded (`omni.kernels`), or interpreted."""
    token = _chosen.set(device)
    try:
        yield
    finally:
        _chosen.reset(token)


@contextmanager
def plain_torch() -> Iterator[None]:
    """While entered, this thread's operations run their references on every device, for comparison with kernels."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)
