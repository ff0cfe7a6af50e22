"""The device contract: streams, events, pinned host memory, and `launch`.

Device memory is touched only inside a *phase* given to `Device.launch`. The same seam is the graph node, the timeline span and the
closure of the simulated device, so code on the host side of it must not read or write a device tensor in any other way: it
allocates through the device, slices views, and hands buffers to phases.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from omni.device.allocations import AllocationCount
from omni.device.host_work import HostWorker, ThreadWorker
from omni.device.sync_points import SyncPoint, may_sync

Phase = Callable[..., None]
"""A function over preallocated buffers that returns nothing."""


class Event(Protocol):
    """A point on a stream."""

    def done(self) -> bool:
        """Whether all work enqueued before the point has completed. Never blocks."""
        ...


class Stream(Protocol):
    """An ordered queue of phases."""

    @property
    def name(self) -> str: ...


class _Completed:
    def done(self) -> bool:
        return True


class HostObserver(Protocol):
    """Is told when the host touches pinned memory that copies use. For a device that checks the order of accesses."""

    def host_writes(self, tensor: torch.Tensor) -> None:
        """The host writes to `tensor` from now until it launches what reads it."""
        ...

    def host_reads(self, tensor: torch.Tensor) -> None:
        """The host reads `tensor` now."""
        ...


COMPLETED: Event = _Completed()
"""The event of data that was ready from the start (host data)."""


class Device(ABC):
    """One accelerator, or the CPU standing in for one. Used by one engine loop, from one thread."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.launching: str | None = None
        """Name of the phase being launched, or None: what a guard asks whether device memory may be touched now."""
        self.host_observer: HostObserver | None = None

    @abstractmethod
    def stream(self, name: str, *, priority: int = 0) -> Stream:
        """A new stream. A negative priority is served first where the device supports it."""

    @abstractmethod
    def record(self, stream: Stream) -> Event:
        """An event after everything launched on `stream` so far."""

    @abstractmethod
    def wait(self, stream: Stream, event: Event) -> None:
        """Later phases on `stream` run after `event`. Only for events of the same stage: never for another's unfinished work."""

    @abstractmethod
    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        """A context in which torch work goes to `stream`."""

    @abstractmethod
    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that copies to and from the device without blocking (pinned on a GPU)."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for everything: only inside `may_sync`."""

    def host_worker(self, name: str) -> HostWorker:
        """Does host work beside the thread that drives the device."""
        return ThreadWorker(name)

    def free_memory(self) -> int | None:
        """Bytes of device memory that this process could still take; None where that is not for the device to say (the CPU)."""
        return None

    def measure_peak(self, run: Callable[[], None]) -> int:
        """The most bytes of device memory that `run`, and what it launches, takes at once beyond what is taken before.

        Waits for it all: for start-up only.
        """
        count = AllocationCount(self.torch_device)
        with count:
            run()
            with may_sync(SyncPoint.MEASURE):
                self.synchronize()
        return count.peak

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        """Enqueues `phase(*buffers)` on `stream`. What the phase raises on the host propagates."""
        outer, self.launching = self.launching, phase.__name__
        try:
            with self._on(stream):
                phase(*buffers)
        except Exception as error:
            error.add_note(f"in phase {phase.__name__}")
            raise
        finally:
            self.launching = outer

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, stream: Stream) -> torch.Tensor:
        """Uninitialised device memory for use on `stream` alone: once let go of, it may be handed out again on that stream
        while earlier phases still use it, which is safe there and nowhere else."""
        with self._on(stream), self._phase(self.empty):
            return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed device memory."""
        with self._phase(self.zeros):
            return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def ones(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory filled with ones."""
        with self._phase(self.ones):
            return torch.ones(shape, dtype=dtype, device=self.torch_device)

    def arange(self, count: int) -> torch.Tensor:
        """int64 0 to `count` - 1 in device memory."""
        with self._phase(self.arange):
            return torch.arange(count, device=self.torch_device)

    @contextmanager
    def _phase(self, phase: Callable[..., object]) -> Iterator[None]:
        outer, self.launching = self.launching, phase.__name__
        try:
            yield
        finally:
            self.launching = outer
