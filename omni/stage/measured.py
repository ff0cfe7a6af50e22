"""The loaded stage of kinds whose batches need memory, but no pages: measured on the largest batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Generic, Protocol, TypeVar

from torch import nn

from omni.device import AllocationCount
from omni.stage.base import StageContext, StageWorker
from omni.stage.footprint import Footprint, module_bytes
from omni.stage.memory_errors import memory_errors
from omni.stage.progress import capture_progress


class CapturingWorker(StageWorker, Protocol):
    """A worker whose batches can be captured."""

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures batches of these sizes. Only at start, before requests."""
        ...


_BUFFERS = "the buffers"

WorkerT = TypeVar("WorkerT", bound=CapturingWorker)


class MeasuredStage(ABC, Generic[WorkerT]):
    """A `LoadedStage` whose worker allocates everything that outlives a batch. Subclasses implement `largest_batches`.

    memory_options: options that reduce the memory of the worker and its batches, for errors.
    """

    memory_options: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        context: StageContext,
        model: nn.Module,
        new_worker: Callable[[], WorkerT],
        sizes: Sequence[int],
        reserved: int = 0,
    ) -> None:
        """sizes: of the batches to capture if graphs are on, the largest first. reserved: bytes that are allocated
        later."""
        self._context = context
        self._new_worker = new_worker
        self._sizes = sizes if context.graphs else ()
        count = AllocationCount(context.device.torch_device)
        with count, self._room_for(_BUFFERS):
            self._worker = new_worker()
        self.footprint = Footprint(weights=module_bytes(model), fixed=reserved + count.live)

    @abstractmethod
    def largest_batches(self) -> Callable[[WorkerT], None]:
        """A function that runs the largest batches that the stage's options allow, once each. Its inputs are already
        allocated, since they do not belong to the stage's memory."""

    def measure(self) -> int:
        run_largest = self.largest_batches()

        def run_and_capture() -> None:
            run_largest(self._worker)
            self._worker.capture(self._sizes[:1])  # smaller captures reuse its memory

        with self._room_for("the largest batches"):
            peak = self._context.device.measure_peak(run_and_capture)
        # Replace the worker, so that its counters are 0 and it has no graphs. Free it first: both may not fit.
        self._worker.close()
        del self._worker
        with self._room_for(_BUFFERS):
            self._worker = self._new_worker()
        return peak

    def start(self, pages: int) -> WorkerT:
        if self._sizes:
            with self._room_for("the captured batches"):
                self._worker.capture(capture_progress(self._context.stage.name, self._sizes))
        return self._worker

    def _room_for(self, what: str) -> AbstractContextManager[None]:
        return memory_errors(self._context.stage.name, what, self._context.device, self.memory_options)
