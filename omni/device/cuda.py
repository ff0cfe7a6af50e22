"""A CUDA device: torch streams and events, and run times of phases."""

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakSet, ref

import torch

from omni.device.base import COMPLETED, Device, Event, Graph, Launch, SharedCaptures, SharedMemory, Stream
from omni.device.sync import host_waits
from omni.device.sync_points import SyncPoint, may_sync
from omni.utils.collection import no_collection
from omni.utils.log import safe_logger

_log = safe_logger(__name__)
_capturing = threading.Lock()
"""Allows one capture at a time in the process, on any device."""


_POOLED_STREAMS = 32
"""Number of streams of one priority in torch's pool for a device, which torch hands out in turn."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class CudaStream:
    """pool: the memory that graphs of the stream share. captured: names of the phases of each graph captured so far, with any
    buffers."""

    name: str
    raw: torch.cuda.Stream
    pool: Any
    captured: set[tuple[str, ...]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class CudaEvent:
    raw: torch.cuda.Event

    def done(self) -> bool:
        return bool(self.raw.query())


_Parts = tuple[tuple[str, torch.cuda.CUDAGraph], ...]


@dataclass(slots=True, weakref_slot=True, eq=False)
class CudaGraph:
    """A captured graph. launches: the launches that it replaces, made in `context`. parts: torch's graphs with their names, which
    are replayed in order: one for each phase if the capture was observed, else a single one. None while the capture is deferred,
    and after it has failed; a replay then makes `launches`."""

    name: str
    launches: Sequence[Launch]
    context: Context
    parts: _Parts | None = None
    failed: bool = False

    def drop(self) -> None:
        self.parts, self.failed = None, True


class CudaTimer:
    """Reuses timing events: to create one takes longer than to record it. raw_of: torch's stream of a device's stream."""

    def __init__(self, device: torch.device, raw_of: Callable[[Stream], torch.cuda.Stream]) -> None:
        self._raw_of = raw_of
        self._idle = torch.cuda.Stream(device)
        self._pool: list[CudaEvent] = []

    def stamp(self, stream: Stream) -> CudaEvent:
        stamp = self._pool.pop() if self._pool else CudaEvent(torch.cuda.Event(enable_timing=True))
        stamp.raw.record(self._raw_of(stream))
        return stamp

    def elapsed(self, first: Event, second: Event) -> int:
        assert isinstance(first, CudaEvent)
        assert isinstance(second, CudaEvent)
        milliseconds: float = first.raw.elapsed_time(second.raw)  # a float32
        return round(milliseconds * 1e6)

    def give_back(self, stamp: Event) -> None:
        assert isinstance(stamp, CudaEvent)
        self._pool.append(stamp)

    def probe(self) -> tuple[CudaEvent, int, int]:
        stamp = CudaEvent(torch.cuda.Event(enable_timing=True))
        before = time.perf_counter_ns()
        stamp.raw.record(self._idle)
        while not stamp.done():
            pass  # a few microseconds: the stream is otherwise idle
        return stamp, before, time.perf_counter_ns()


class CudaDevice(Device):
    captures: ClassVar[bool] = True

    def __init__(self, index: int = 0) -> None:
        super().__init__(torch.device("cuda", index))
        self.entered = torch.cuda.default_stream(index)
        """The stream that receives torch's work now."""
        self._streams = WeakSet[CudaStream]()
        self._deferred: dict[CudaStream, list[ref[CudaGraph]]] = {}
        self._shared: SharedCaptures | None = None

    def stream(self, name: str, *, priority: int = 0) -> CudaStream:
        raw = torch.cuda.Stream(self.torch_device, priority=priority)
        used = {stream.raw.cuda_stream for stream in self._streams}
        for _ in range(_POOLED_STREAMS):
            if raw.cuda_stream not in used:
                break
            raw = torch.cuda.Stream(self.torch_device, priority=priority)  # that one is in use under another name
        stream = CudaStream(name, raw, torch.cuda.graph_pool_handle())
        self._streams.add(stream)
        return stream

    def record(self, stream: Stream) -> Event:
        assert isinstance(stream, CudaStream)
        event = torch.cuda.Event()
        event.record(stream.raw)
        return CudaEvent(event)

    def wait(self, stream: Stream, event: Event) -> None:
        if event is COMPLETED:
            return
        assert isinstance(stream, CudaStream)
        assert isinstance(event, CudaEvent)
        stream.raw.wait_event(event.raw)

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        """Before the first capture of these phases on the stream, the launches run once: this allocates buffers of libraries. Other
        sizes run only if their capture fails, and is not shared: kernels can be compiled and loaded during a capture."""
        assert isinstance(stream, CudaStream)
        phases = tuple(launch.phase.__name__ for launch in launches)
        graph, shared = CudaGraph(name, launches, copy_context()), self._shared
        if shared is not None:
            shared.drops[name] = graph.drop
        if phases in stream.captured:
            if self._defers:
                self._deferred.setdefault(stream, []).append(ref(graph))
                return graph
            try:
                graph.parts = self._captured(stream, name, launches)
                return graph
            except Exception as error:  # a library may do something for a new size that no capture allows
                if shared is not None and not isinstance(error, torch.OutOfMemoryError):
                    _log.warning("%s runs uncaptured, since its capture failed: %s", name, error)
                    shared.failed.append(name)
                    graph.drop()
                    return graph
                _log.warning("%s runs before its capture, which failed: %s", name, error)
        with may_sync(SyncPoint.CAPTURE):
            self.synchronize()  # buffers were written on other streams
            self.enqueue(stream, launches)
            self.synchronize()
            graph.parts = self._captured(stream, name, launches)
        stream.captured.add(phases)
        return graph

    @contextmanager
    def shared_captures(self) -> Iterator[SharedCaptures]:
        self._shared = SharedCaptures()
        try:
            yield self._shared
        finally:
            self._shared = None

    def capture_deferred(self) -> bool:
        """The streams take turns, each with its last deferred capture: that of the smallest size, which a single request needs."""
        while self._deferred:
            stream = next(iter(self._deferred))
            graphs = self._deferred.pop(stream)
            graph = graphs.pop()()
            if graphs:
                self._deferred[stream] = graphs
            if graph is not None and graph.parts is None and not graph.failed:
                self._capture_now(stream, graph)
                return True
        return False

    def replay(self, stream: Stream, graph: Graph) -> None:
        assert isinstance(stream, CudaStream)
        assert isinstance(graph, CudaGraph)
        if graph.parts is None and not graph.failed:
            self._capture_now(stream, graph)
        if graph.parts is None:
            graph.context.run(self.enqueue, stream, graph.launches)
            return
        observer = self.launch_observer
        with self.on(stream):
            for phase, part in graph.parts:
                if observer is not None:
                    observer.begin(stream, phase)
                part.replay()
                if observer is not None:
                    observer.end()

    def _capture_now(self, stream: CudaStream, graph: CudaGraph) -> None:
        """The buffers hold values of requests now, so the phases must not run before their capture."""
        try:
            graph.parts = graph.context.run(self._captured, stream, graph.name, graph.launches)
        except Exception as error:
            graph.failed = True
            _log.warning("%s runs uncaptured, since its capture failed: %s", graph.name, error)

    def _captured(self, stream: CudaStream, name: str, launches: Sequence[Launch]) -> _Parts:
        """Never waits for the device: a deferred capture is made beside requests."""
        with _capturing:
            try:
                return tuple((part, self._captured_part(stream, of)) for part, of in self._parts(name, launches))
            except Exception:
                # For torch the failed capture still records into the old pool.
                stream.pool = torch.cuda.graph_pool_handle()
                raise

    def _parts(self, name: str, launches: Sequence[Launch]) -> list[tuple[str, Sequence[Launch]]]:
        if self.launch_observer is None:
            return [(name, launches)]
        return [(launch.phase.__name__, [launch]) for launch in launches]

    def _captured_part(self, stream: CudaStream, launches: Sequence[Launch]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # A collection may destroy graphs of an old engine: the capture would fail.
        with self.on(stream), no_collection():
            # "thread_local": other threads may allocate during the capture.
            graph.capture_begin(pool=stream.pool, capture_error_mode="thread_local")
            try:
                for launch in launches:
                    with self._phase(launch.phase):
                        launch.phase(*launch.buffers)
            except Exception as error:
                with suppress(RuntimeError):  # the graph is invalid; the first error has the cause
                    graph.capture_end()
                error.add_note(f"in phase {launch.phase.__name__}, while it was captured")
                raise
            graph.capture_end()
        return graph

    def timer(self) -> CudaTimer:
        return CudaTimer(self.torch_device, _raw)

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        # device="cpu": torch's default device is the GPU while models are built.
        return torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=True)

    def pin(self, memory: torch.Tensor) -> Callable[[], None]:
        """Raises RuntimeError if the system does not allow it."""
        runtime = torch.cuda.cudart()
        address = memory.data_ptr()
        with torch.cuda.device(self.torch_device):
            torch.cuda.check_error(int(runtime.cudaHostRegister(address, memory.nbytes, 0)))

        def unpin() -> None:
            with torch.cuda.device(self.torch_device):
                runtime.cudaHostUnregister(address)

        return unpin

    def shared(self, shape: tuple[int, ...], dtype: torch.dtype) -> SharedMemory:
        host = self.host_tensor(shape, dtype)
        device = torch.as_tensor(_HostArray(host), device=self.torch_device)
        if device.data_ptr() != host.data_ptr():  # unified addressing: host and devices share the address
            raise RuntimeError(
                f"torch {torch.__version__} copies pinned memory to {self.torch_device}: it cannot be shared"
            )
        return SharedMemory(host, device)

    def synchronize(self) -> None:
        host_waits("Device.synchronize")
        torch.cuda.synchronize(self.torch_device)

    def free_memory(self) -> int:
        with may_sync(SyncPoint.FREE_MEMORY):
            self.synchronize()
        gc.collect()  # a closed engine's stages and their tensors are in cycles
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Measures the allocator's peak in whole segments: fragmented memory is not available to others either. Memory outside the
        allocator (kernels' code, buffers of libraries) shows in the device's free memory, and stays allocated."""
        device = self.torch_device
        free, reserved = self.free_memory(), torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        with may_sync(SyncPoint.MEASURE):
            self.synchronize()
        peak = torch.cuda.max_memory_reserved(device) - reserved
        kept = free - self.free_memory()
        outside = kept - (torch.cuda.memory_reserved(device) - reserved)
        return peak + max(outside, 0)

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        assert isinstance(stream, CudaStream)
        return _Entered(self, stream.raw)


class _HostArray:
    """`__cuda_array_interface__` of pinned memory. A tensor made from this object keeps the memory alive."""

    def __init__(self, host: torch.Tensor) -> None:
        self._host = host
        described = host.numpy().__array_interface__
        self.__cuda_array_interface__ = {**described, "version": 2}


class _Entered:
    """While entered, torch enqueues work on a stream. Cheaper than `torch.cuda.stream`: the device keeps the present
    stream itself, since only one thread at a time uses it."""

    __slots__ = ("_device", "_outer", "_raw")

    def __init__(self, device: CudaDevice, raw: torch.cuda.Stream) -> None:
        self._device = device
        self._raw = raw
        self._outer = device.entered

    def __enter__(self) -> None:
        if self._raw is not self._outer:
            self._device.entered = self._raw
            torch.cuda.set_stream(self._raw)

    def __exit__(self, *exception: object) -> None:
        if self._raw is not self._outer:
            self._device.entered = self._outer
            torch.cuda.set_stream(self._outer)


def _raw(stream: Stream) -> torch.cuda.Stream:
    assert isinstance(stream, CudaStream)
    return stream.raw
