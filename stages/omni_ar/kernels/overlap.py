"""Kernels that start while the previous kernel of their stream still runs (programmatic dependent launch, Hopper and
later).

A kernel launched with `launch_pdl` may start when all programs of the previous kernel have called
`gdc_launch_dependents` or ended. Its own `gdc_wait` returns when the previous kernel is complete. The memory that it
may access before that depends on the order of the two calls in the previous kernel:

- *Dependents first.* Most kernels let the next one start at once, and wait later. Several kernels may then be on the device before
  their waits. So before its wait a kernel reads only memory that no kernel writes, and writes none, since earlier kernels may still
  read it. No kernel writes weights: they may be loaded early, which is the purpose of the overlap.
  Decode attention alone reads its table and lengths early, only to choose what it prefetches.
- *Wait first.* The kernels of a mixture of experts after its router (`moe/wait.py`) let the next one start after
  their own wait. The last kernel but one is then complete when the next one starts, and its output may be read before
  the wait. Linear maps whose settings are not `early` let it start after their products: programs that start while many
  others run may be divided unevenly among the multiprocessors, and steps with large weights take longer by that.

In both cases every program waits before it ends: when a kernel is complete, all earlier ones are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from omni.device.kernel_choice import kernel_device

_in_turn: ContextVar[bool] = ContextVar("in_turn", default=False)


def overlaps(tensor: Tensor) -> bool:
    """Whether kernels on the device of `tensor` overlap."""
    device = kernel_device(tensor)
    return device.type == "cuda" and not _in_turn.get() and _device_can(device)


@contextmanager
def kernels_in_turn() -> Iterator[None]:
    """While entered, kernels of this thread's launches do not overlap: multiprocessors are free for those of other streams."""
    token = _in_turn.set(True)
    try:
        yield
    finally:
        _in_turn.reset(token)


def overlap_options(overlap: bool) -> dict[str, bool]:
    """Options of a launch whose kernel takes OVERLAP. overlap: whether it starts while the previous kernel still
    runs."""
    return {"OVERLAP": True, "launch_pdl": True} if overlap else {"OVERLAP": False}


@cache
def _device_can(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
