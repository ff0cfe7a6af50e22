"""The choice between an operation's Triton kernel and its torch reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_plain: ContextVar[bool] = ContextVar("plain", default=False)
_recorded: ContextVar[torch.device | None] = ContextVar("recorded", default=None)


def runs_kernel(tensor: Tensor) -> bool:
    """Whether an operation on `tensor` runs its Triton kernel: on a CUDA device, outside `plain_torch`."""
    return (tensor.is_cuda or kernel_device(tensor).type == "cuda") and not _plain.get()


def kernel_device(tensor: Tensor) -> torch.device:
    """The device that kernels on `tensor` are chosen and compiled for: its own, except inside `recorded_for`."""
    if tensor.is_meta:
        return _recorded.get() or tensor.device
    return tensor.device


@contextmanager
def recorded_for(device: torch.device) -> Iterator[None]:
    """While entered, operations of this thread on meta tensors choose the kernels of `device`, so that their launches can
    be recorded (`omni.kernels`). A launch that nobody records fails."""
    token = _recorded.set(device)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def plain_torch() -> Iterator[None]:
    """While entered, this thread's operations run their references on every device, for comparison with kernels."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)
