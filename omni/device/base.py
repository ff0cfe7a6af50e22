"""The device contract: streams, events, pinned host memory, and `launch`.

Device memory is touched only inside a *phase* given to `Device.launch`. The same seam is the graph node, the timeline span and the
closure of the simulated device, so code on the host side of it must not read or write a device tensor in any other way: it
allocates through the device, slices views, and hands buffers to phases.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch

from omni.device.allocations import AllocationCount
from omni.device.host_work import HostWorker, ThreadWorker
from omni.device.observer import DeviceTimer, LaunchObserver
from omni.device.sync_points import SyncPoint, may_sync

Phase = Callable[..., None]
"""A function over preallocated buffers that returns nothing."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A phase and its buffers, to be launched or captured."""

    phase: Phase
    buffers: tuple[object, ...]

    @classmethod
    def of(cls, phase: Phase, *buffers: object) -> "Launch":
        """The launch of `phase(*buffers)`."""
        return cls(phase, buffers)


class Graph(Protocol):
    """Launches that were captured together, on the buffers they were captured with."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LaunchList:
    """The graph of a device that captures nothing: its launches, to be made one after the other."""

    name: str
    launches: tuple[Launch, ...]


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


class SharedMemory(NamedTuple):
    """One piece of the host's memory, as the host sees it and as phases do."""

    host: torch.Tensor
    device: torch.Tensor


_NOTHING = nullcontext()
COMPLETED: Event = _Completed()
"""The event of data that was ready from the start (host data)."""


class Device(ABC):
    """One accelerator, or the CPU standing in for one. Used by one engine loop, from one thread."""

    captures: ClassVar[bool] = False
    """Whether captured launches cost the host less than the same launches one by one."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.launching: str | None = None
        """Name of the phase being launched, or None: what a guard asks whether device memory may be touched now."""
        self.host_observer: HostObserver | None = None
        self.launch_observer: LaunchObserver | None = None
        """Is told of launches; to see the phases of graphs it must be there when they are captured."""

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

    def shared(self, shape: tuple[int, ...], dtype: torch.dtype) -> SharedMemory:
        """Zeroed host memory that phases may write without a copy: the host reads it once an event behind them is done.

        For a few words: to a phase it is as far away as the host is.
        """
        host = self.host_tensor(shape, dtype)
        return SharedMemory(host, host)

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
        observer = self.launch_observer
        if observer is not None:
            observer.begin(stream, phase.__name__)
        try:
            with self._on(stream):
                phase(*buffers)
        except Exception as error:
            error.add_note(f"in phase {phase.__name__}")
            raise
        finally:
            self.launching = outer
            if observer is not None:
                observer.end()

    def enqueue(self, stream: Stream, launches: Iterable[Launch]) -> None:
        """Launches all of them, in order."""
        for launch in launches:
            self.launch(stream, launch.phase, *launch.buffers)

    def host_span(self, stream: Stream, name: str, **numbers: int) -> AbstractContextManager[object]:
        """While entered, the host does `name` for the stage of `stream`: for whoever observes launches.

        numbers: what is to be known of it. What is launched meanwhile belongs to the step `numbers["step"]`.
        """
        return _NOTHING if self.launch_observer is None else self.launch_observer.host_span(stream, name, numbers)

    def host_time(self) -> int:
        """Now, for `host_did`: nanoseconds of `perf_counter_ns`. 0 while nobody observes launches."""
        return 0 if self.launch_observer is None else time.perf_counter_ns()

    def moment(self, stream: Stream, name: str) -> None:
        """Tells whoever observes launches of a point on the stream: a phase that launches nothing."""
        if self.launch_observer is not None:
            self.launch_observer.begin(stream, name)
            self.launch_observer.end()

    def host_did(self, stream: str, name: str, since: int, **numbers: int) -> None:
        """As a `host_span` from `since` until now, for work of which only its end tells whether there was any. What was launched
        meanwhile is not of its step.

        stream: the name of a stream, or of no stream for work that is of no stage.
        """
        if self.launch_observer is not None:
            self.launch_observer.host_did(stream, name, since, numbers)

    def timer(self) -> DeviceTimer | None:
        """Tells when launched phases ran; None where they run when they are launched."""
        return None

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        """Makes one graph of launches on `stream`, for `replay` there; for start-up only.

        The phases may run meanwhile, once or more, so their buffers hold valid input, and what they write is worth nothing. Memory
        that they allocate is the graph's; graphs of one stream share it, so those of two streams may run at the same time, and
        what is to outlive a step is in buffers that were there before.
        """
        return LaunchList(name, tuple(launches))

    def replay(self, stream: Stream, graph: Graph) -> None:
        """Enqueues what `capture` captured, on the same buffers."""
        assert isinstance(graph, LaunchList)
        self.enqueue(stream, graph.launches)

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
