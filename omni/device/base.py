"""The device contract: streams, events, pinned host memory, and `launch`.

Device memory is accessed only inside a *phase* that `Device.launch` enqueues, also the node of a graph, the span of a
timeline and the unit of the simulated device. Host code allocates through the device, slices views, and passes buffers.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple, ParamSpec, Protocol, runtime_checkable

import numpy as np
import torch

from omni.device.allocations import AllocationCount
from omni.device.host_work import HostWorker, ThreadWorker
from omni.device.sync_points import SyncPoint, may_sync
from omni.errors import plugin_error
from omni.utils.log import safe_logger
from omni.utils.origin import CallSite

_log = safe_logger(__name__)


class PhaseCategory(Enum):
    """Values are the names in reports."""

    PREPROCESS = "preprocess"
    """The inputs of a step: rows, tables, positions, input embeddings."""
    FORWARD = "forward"
    LOGITS = "logits"
    SAMPLE = "sample"
    TOKEN_POINT = "token point"
    """A moment without work: the tokens are complete, for the next step and for the host."""
    CODES = "code prediction"
    POSTPROCESS = "postprocess"
    PAYLOAD = "payload"
    """Payloads made for other stages, or received from them."""
    TRANSFER = "transfer"
    """Data for other ranks of the stage, or from them."""
    SCORES = "scores"
    COPIES = "copies"
    """Other copies between host and device."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class _Declared:
    category: PhaseCategory
    call: CallSite
    """Call site of the declaration."""


_declared: dict[str, _Declared] = {}


def declare_categories(categories: Mapping[str, PhaseCategory]) -> None:
    """Declares the categories of phases by name, at import. Names are shared by all plugins.

    Raises PluginError for a name that has another category already. One of omni's own phases takes its name back from a
    plugin that declared it first, which the log reports: models that do not use the plugin need it.
    """
    call = CallSite.here()
    for phase, category in categories.items():
        before = _declared.setdefault(phase, _Declared(category, call))
        if before.category is category:
            continue
        other = f"{before.category.value!r} ({before.call})"
        if call.own and not before.call.own:
            _log.warning("phase %r is declared %s, and %r by omni: rename it there", phase, other, category.value)
            _declared[phase] = _Declared(category, call)
            continue
        problem = f"is declared {category.value!r} ({call}), and already {other}"
        whose = "rename the first" if before.call.own else "give one of the two another name"
        raise plugin_error(f"phase {phase!r}", problem, whose)


def category_of(phase: str) -> PhaseCategory:
    """The declared category of a phase; `OTHER` without a declaration."""
    declared = _declared.get(phase)
    return declared.category if declared is not None else PhaseCategory.OTHER


declare_categories(dict.fromkeys(("copy_upload", "copy_weight", "copy_extent"), PhaseCategory.COPIES))


class Stream(Protocol):
    """An ordered queue of phases."""

    @property
    def name(self) -> str: ...


class LaunchObserver(Protocol):
    """Receives every phase that is launched or replayed, and moments. On the device's thread; never waits or launches."""

    def begin(self, stream: Stream, phase: str) -> None:
        """`phase` is about to be enqueued on `stream`. Phases do not nest."""

    def end(self) -> None:
        """The phase is enqueued, or its enqueueing has failed."""

    def moment(self, stream: Stream, name: str) -> None: ...

    def host_span(self, stream: Stream, name: str, numbers: dict[str, int]) -> AbstractContextManager[object]: ...

    def host_did(self, stream: str, name: str, since: int, numbers: dict[str, int]) -> None: ...


class DeviceTimer(Protocol):
    """Marks moments in a device's streams. Only for devices that run work later than it is launched."""

    def stamp(self, stream: Stream) -> "Event":
        """A timing event after everything on the stream so far."""

    def elapsed(self, first: "Event", second: "Event") -> int:
        """Nanoseconds between two done stamps; negative if `second` was earlier. Imprecise over more than a second."""

    def give_back(self, stamp: "Event") -> None: ...

    def probe(self) -> "tuple[Event, int, int]":
        """A done stamp of an idle stream, and the host's `perf_counter_ns` before and after it."""


BuffersP = ParamSpec("BuffersP")
Phase = Callable[..., None]
"""A function over preallocated buffers that returns nothing."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A phase and its buffers, to be launched or captured."""

    phase: Phase
    buffers: tuple[object, ...]

    @classmethod
    def of(cls, phase: Callable[BuffersP, None], *buffers: BuffersP.args, **named: BuffersP.kwargs) -> "Launch":
        """The types of the buffers are checked against the phase's parameters. All are given in order, none by name."""
        assert not named
        return cls(phase, buffers)


class Graph(Protocol):
    """Captured launches, replayed on the buffers of the capture."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LaunchList:
    """The graph of a device without captures: its launches, made one after the other."""

    name: str
    launches: tuple[Launch, ...]


@dataclass(slots=True)
class SharedCaptures:
    """Captures of which other processes make the same. failed: names of the graphs whose capture has failed. drops: by name of the
    graphs, drops a capture."""

    failed: list[str] = field(default_factory=list)
    drops: dict[str, Callable[[], None]] = field(default_factory=dict)

    def drop(self, names: Iterable[str]) -> None:
        """From now on, replays of these graphs make the launches instead. Other names have no effect."""
        for name in names:
            if name in self.drops:
                self.drops[name]()


@runtime_checkable
class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether all work enqueued before the point has completed. Never blocks."""


class _Completed:
    def done(self) -> bool:
        return True


class HostObserver(Protocol):
    """Observes the host's accesses to pinned memory that copies use, for devices that check the order of accesses."""

    def host_writes(self, tensor: torch.Tensor) -> None:
        """The host writes to `tensor` from now until it launches the phase that reads it."""

    def host_reads(self, tensor: torch.Tensor) -> None: ...


class SharedMemory(NamedTuple):
    """A piece of host memory, as the host sees it and as phases see it."""

    host: torch.Tensor
    device: torch.Tensor


_NOTHING = nullcontext()
COMPLETED: Event = _Completed()
"""The event of data that needs no device work (host data)."""


class Device(ABC):
    """One accelerator, or the CPU in its place. One engine loop uses it, from one thread."""

    captures: ClassVar[bool] = False
    """Whether captured launches cost the host less than the same launches one by one."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._defers = False
        self.launching: str | None = None
        """Name of the phase that is being launched, or None. A guard uses it to check accesses to device memory."""
        self.host_observer: HostObserver | None = None
        self.launch_observer: LaunchObserver | None = None
        """Observes launches. To see the phases of graphs, set it before their capture."""

    @property
    def kernel_device(self) -> torch.device:
        """The device that kernels are chosen for: `torch_device`, except where launches are only recorded."""
        return self.torch_device

    @abstractmethod
    def stream(self, name: str, *, priority: int = 0) -> Stream:
        """Returns a new stream. Streams of lower priority numbers run first where the device supports it."""

    @abstractmethod
    def record(self, stream: Stream) -> Event:
        """An event after everything launched on `stream` so far."""

    @abstractmethod
    def wait(self, stream: Stream, event: Event) -> None:
        """Makes later phases on `stream` run after `event`. No stage may wait for another stage's unfinished work."""

    def wait_remote(self, stream: Stream, event: Event) -> None:  # noqa: B027
        """Makes later phases on `stream` run after `event`, which another process completes. No effect where the reading phase
        itself waits (on the CPU), or the device does (CUDA)."""

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """A context in which torch enqueues its work on `stream`. Every launch enters it; entered around several, it spares
        each two changes of torch's stream."""
        return _NOTHING

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory for non-blocking copies to and from the device (pinned on a GPU)."""
        # Allocated by numpy, so that it does not count as device memory, which is the same memory on the CPU.
        return torch.from_numpy(np.zeros(shape, np.dtype(str(dtype).removeprefix("torch."))))

    def pin(self, memory: torch.Tensor) -> Callable[[], None]:
        """Makes copies to and from existing host memory asynchronous. Returns the function that ends this. Only for start-up, or
        when a connection is made."""
        return lambda: None

    def shared(self, shape: tuple[int, ...], dtype: torch.dtype) -> SharedMemory:
        """Zeroed host memory that phases may write without a copy. The host reads it once a later event is done."""
        host = self.host_tensor(shape, dtype)
        return SharedMemory(host, host)

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all work on the device. Only inside `may_sync`."""

    def host_worker(self, name: str) -> HostWorker:
        """A worker for host work beside the thread that drives the device."""
        return ThreadWorker(name)

    def free_memory(self) -> int | None:
        """Bytes of device memory that this process can still allocate; None where it has no limit (the CPU)."""
        return None

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Peak bytes of device memory that `run` and its launches take beyond those in use. Waits for the device: at start-up."""
        count = AllocationCount(self.torch_device)
        with count:
            run()
            with may_sync(SyncPoint.MEASURE):
                self.synchronize()
        return count.peak

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        """Enqueues `phase(*buffers)` on `stream`. Propagates host exceptions of the phase."""
        outer, self.launching = self.launching, phase.__name__
        observer = self.launch_observer
        if observer is not None:
            observer.begin(stream, phase.__name__)
        try:
            with self.on(stream):
                phase(*buffers)
        except BaseException as error:  # of a plugin, which may raise SystemExit
            error.add_note(f"in phase {phase.__name__}")
            raise
        finally:
            self.launching = outer
            if observer is not None:
                observer.end()

    def enqueue(self, stream: Stream, launches: Iterable[Launch]) -> None:
        for launch in launches:
            self.launch(stream, launch.phase, *launch.buffers)

    def replay_or_enqueue(self, stream: Stream, graph: Graph | None, launches: Iterable[Launch]) -> None:
        """Replays the graph that was captured of such launches; without one, enqueues them."""
        if graph is not None:
            self.replay(stream, graph)
        else:
            self.enqueue(stream, launches)

    def host_span(self, stream: Stream, name: str, **numbers: int) -> AbstractContextManager[object]:
        """While entered, the host does `name` for the stage of `stream`, reported to the launch observer with the numbers. Launches
        inside belong to the step `numbers["step"]`."""
        return _NOTHING if self.launch_observer is None else self.launch_observer.host_span(stream, name, numbers)

    def seconds(self) -> float:
        """The present time for schedulers, in seconds of a clock that only grows."""
        return time.perf_counter()

    def host_time(self) -> int:
        """The present time for `host_did`, in nanoseconds of `perf_counter_ns`. 0 without a launch observer."""
        return 0 if self.launch_observer is None else time.perf_counter_ns()

    def moment(self, stream: Stream, name: str) -> None:
        """Reports a point in the stream to the launch observer, as a phase that launches nothing."""
        if self.launch_observer is not None:
            self.launch_observer.moment(stream, name)

    def host_did(self, stream: str, name: str, since: int, **numbers: int) -> None:
        """Reports a `host_span` from `since` until now, for work known only at its end; launches inside do not belong to its step.
        stream: the name of a stream; for work of no stage, another name."""
        if self.launch_observer is not None:
            self.launch_observer.host_did(stream, name, since, numbers)

    def timer(self) -> DeviceTimer | None:
        """A timer for the run times of phases; None if phases run while they are launched."""
        return None

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        """Captures launches on `stream` in one graph, for `replay` there. Only at start-up. The phases may run before the capture,
        during it, or not at all, so buffers must hold valid input; their output is undefined. Memory that they allocate belongs to
        the graphs of the stream, which share it; results that outlive a step, such as tensors that a phase makes once and keeps,
        need buffers allocated earlier. The capture itself may be deferred (`defer_captures`)."""
        return LaunchList(name, tuple(launches))

    def defer_captures(self) -> None:
        """From now on, `capture` may leave captures to `capture_deferred` or to the first replay, if their phases need not run
        before. Not for a device whose captures involve other processes, as collectives do."""
        self._defers = True

    @contextmanager
    def shared_captures(self) -> Iterator[SharedCaptures]:
        """While entered, the same captures are made by other processes, with collectives between them. If one fails whose phases
        have run before, its launches are not run, since the others would have no part in them: replays make them instead."""
        yield SharedCaptures()

    def capture_deferred(self) -> bool:
        """Makes one deferred capture, while the device is idle. Returns whether there was one."""
        return False

    def replay(self, stream: Stream, graph: Graph) -> None:
        assert isinstance(graph, LaunchList)
        self.enqueue(stream, graph.launches)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, stream: Stream) -> torch.Tensor:
        """Uninitialised device memory for use on `stream` alone. After its last reference, the stream may reuse it
        while earlier phases still run."""
        with self.on(stream), self._phase(self.empty):
            return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with self._phase(self.zeros):
            return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    @contextmanager
    def _phase(self, phase: Callable[..., object]) -> Iterator[None]:
        outer, self.launching = self.launching, phase.__name__
        try:
            yield
        finally:
            self.launching = outer
