"""Kernels that begin while the one before them on their stream still runs (programmatic dependent launch, Hopper and later).

A launch with `launch_pdl` may begin when all programs of the kernel before it have called `gdc_launch_dependents` or are over. What
it may touch before its own `gdc_wait`, which returns when the kernel before is complete, depends on how that one calls the two:

- *Dependents first.* Most kernels let the next one come at once, and wait later. Several may then be on the device that have not
  waited, so before its wait a kernel reads nothing that any kernel writes, and writes nothing at all: others may still read it.
  Weights nobody writes: they may be on their way, which is what this is for.
- *Wait first.* The kernels of a mixture of experts behind its router (`wait_for_previous`) let the next one come when they have
  waited themselves. What lies two kernels back is then complete when the next one begins, and may be read before its wait.

Either way every program waits before it ends: a kernel that is complete has all before it complete.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_in_turn: ContextVar[bool] = ContextVar("in_turn", default=False)


def overlaps(tensor: Tensor) -> bool:
    """Whether kernels on the device of `tensor` are launched so."""
    return tensor.is_cuda and not _in_turn.get() and _device_can(tensor.device)


@contextmanager
def kernels_in_turn() -> Iterator[None]:
    """While entered, this thread launches each kernel after the end of the one before: what overlap is measured against."""
    token = _in_turn.set(True)
    try:
        yield
    finally:
        _in_turn.reset(token)


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Waits, and then lets the next kernel come."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


def overlap_options(overlap: bool) -> dict[str, bool]:
    """Options of a launch whose kernel takes OVERLAP. overlap: whether it comes while the kernel before it still runs."""
    return {"OVERLAP": True, "launch_pdl": True} if overlap else {"OVERLAP": False}


@cache
def _device_can(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
