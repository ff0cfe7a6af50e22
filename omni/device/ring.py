"""Rings of pinned host slots: the only host memory that the device reads or writes.

| buffer | written by | read by | freed by |
|---|---|---|---|
| slot of an upload ring | host, while filling it | the H2D copy | the event after the copy |
| slot of a download ring | D2H copy of a step, or its phases | host, after their event | `release` by the host |
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from omni.device.base import COMPLETED, Device, Event


class HostSlot:
    """One slot: a pinned tensor, the same memory as a numpy array, and the event that guards it."""

    def __init__(self, device: Device, tensor: torch.Tensor) -> None:
        """tensor: a `host_tensor` of the device, or a part of one."""
        self.tensor = tensor
        self._array: NDArray[np.generic] = self.tensor.numpy()
        self._observer = device.host_observer
        self._guard: Event | None = COMPLETED
        """The event after which the host may access the slot; None while it is handed out."""
        self.claimed = False
        """Whether the slot is reserved for a later read: it is not written again before `release`."""

    @property
    def free(self) -> bool:
        return self._guard is not None and self._guard.done()

    def claim(self) -> None:
        self.claimed = True

    def release(self) -> None:
        """Ends a `claim`, after the read or without one. Idempotent."""
        self.claimed = False

    def take(self) -> NDArray[np.generic]:
        """Hands the slot out for the host to fill. Call `guard` once the device work that uses it is enqueued."""
        if self.claimed or not self.free:
            raise RuntimeError("a host slot was reused while the device may still use it: the ring is too small")
        self._guard = None
        if self._observer is not None:
            self._observer.host_writes(self.tensor)
        return self._array

    def guard(self, event: Event) -> None:
        """The device is done with the slot when `event` is."""
        self._guard = event

    def read(self) -> NDArray[np.generic]:
        """The contents, for a slot that the device wrote. The guard must be done."""
        if not self.free:
            raise RuntimeError("a host slot was read before the device had written it")
        if self._observer is not None:
            self._observer.host_reads(self.tensor)
        return self._array


class HostRing:
    """Pinned buffers of one shape, used in turn."""

    def __init__(self, slots: Sequence[HostSlot]) -> None:
        self._slots = slots
        self._next = 0

    @classmethod
    def allocate(cls, device: Device, shape: tuple[int, ...], dtype: torch.dtype, slots: int) -> "HostRing":
        return cls([HostSlot(device, device.host_tensor(shape, dtype)) for _ in range(slots)])

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def claimed(self) -> bool:
        return self._slots[self._next].claimed

    @property
    def ready(self) -> bool:
        return not self.claimed and self._slots[self._next].free

    def advance(self) -> HostSlot:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        return slot
