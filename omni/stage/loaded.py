"""Building blocks of loaded stages: the model, stages without pages, progress bars, and artificial requests for start-up."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar, cast

from torch import nn
from tqdm import tqdm

from omni.device import AllocationCount, Device, SyncPoint, may_sync
from omni.device.graphs import captured_sizes
from omni.errors import ConfigError, StageError, plugin_error, type_of
from omni.plugin import locate
from omni.stage.base import Footprint, StageContext, StageWorker, module_bytes
from omni.stage.memory_errors import full_memory, memory_errors
from omni.stage.messages import Done, Failed, Inbound, Open, Produced
from omni.stage.rows import RowCost
from omni.utils.origin import with_origin

ModelT = TypeVar("ModelT")
SizeT = TypeVar("SizeT")


def build_model(context: StageContext, expected: type[ModelT]) -> ModelT:
    """Calls the function `Stage.model`: `(StageContext) -> model`, on the context's device, weights loaded. Raises ConfigError if
    the stage has no function, or if the result is not an `expected` or does not fit the device, and PluginError for a function of
    another signature, or one that has not read weights for its parameters. Propagates the function's errors.
    """
    stage = context.stage
    field = f"pipeline.stages.{stage.name}.model"
    if stage.model is None:
        raise ConfigError(
            field, "is missing", f"kind {stage.kind!r} takes a function that returns a {expected.__name__}"
        )
    build = cast(Callable[[StageContext], object], locate(stage.model, field))
    _check_signature(build, stage.model, field)
    reads = context.checkpoint.reads
    with memory_errors(stage.name, "the weights", context.device):
        model = build(context)
    if not isinstance(model, expected):
        wanted = f"{expected.__module__}.{expected.__name__}"
        problem = with_origin(f"gave {type_of(model)}", code=build)
        raise ConfigError(field, problem, f"kind {stage.kind!r} takes an {wanted}: return one")
    published = context.load_format == "auto" and context.checkpoint.has_weights
    if published and context.checkpoint.reads == reads and isinstance(model, nn.Module) and list(model.parameters()):
        count = len(list(model.parameters()))
        problem = with_origin(f"loaded no weight: the model's {count} parameters have random values", code=build)
        raise plugin_error(field, problem, "call load_weights(model, context, prefixes) before you return the model")
    return model


def _check_signature(build: object, path: str, field: str) -> None:
    """Raises PluginError unless `build` can be called with a context alone."""
    if not callable(build):
        raise plugin_error(field, f"{path} is {type_of(build)}, which cannot be called", "name a function")
    try:
        signature = inspect.signature(build)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        problem = with_origin(f"{path}{signature} cannot be called with a StageContext: {error}", code=build)
        raise plugin_error(field, problem, "write def build(context: StageContext)") from None


@dataclass(frozen=True, slots=True)
class PlainStage:
    """A `LoadedStage` with an existing worker and negligible working memory."""

    worker: StageWorker
    footprint: Footprint = field(default_factory=Footprint)

    def measure(self) -> int:
        return 0

    def start(self, pages: int) -> StageWorker:
        return self.worker


class CapturingWorker(StageWorker, Protocol):
    """A worker whose batches can be captured."""

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures batches of these sizes. Only at start, before requests."""


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
        self._worker: WorkerT | None
        self._worker, fixed = self._counted(new_worker)
        self.footprint = Footprint(weights=module_bytes(model), fixed=reserved + fixed)

    @abstractmethod
    def largest_batches(self) -> Callable[[WorkerT], None]:
        """A function that runs the largest batches that the stage's options allow, once each. Its inputs are already
        allocated, since they do not belong to the stage's memory."""

    def measure(self) -> int:
        run_largest = self.largest_batches()

        def run_and_capture() -> None:
            worker = self._present_worker
            run_largest(worker)
            worker.capture(self._sizes[:1])  # smaller captures reuse its memory

        with self._memory_errors("the largest batches"):
            peak = self._context.device.measure_peak(run_and_capture)
        # Replace the worker, so that its counters are 0 and it has no graphs.
        self._free_worker()
        with self._memory_errors(_BUFFERS):
            self._worker = self._new_worker()
        return peak

    def warm_up(self) -> None:
        """See `WarmStage`."""
        worker = self._present_worker
        worker.capture(self._sizes)
        self.largest_batches()(worker)

    def start(self, pages: int) -> WorkerT:
        if self._sizes:
            with self._memory_errors("the captured batches"):
                self._present_worker.capture(capture_progress(self._context.stage.name, self._sizes))
        return self._present_worker

    def _counted(self, new_worker: Callable[[], WorkerT]) -> tuple[WorkerT, int]:
        """A worker, and the bytes that it allocates."""
        count = AllocationCount(self._context.device.torch_device)
        with count, self._memory_errors(_BUFFERS):
            worker = new_worker()
        return worker, count.live

    @property
    def _present_worker(self) -> WorkerT:
        assert self._worker is not None
        return self._worker

    def _free_worker(self) -> None:
        """Before the next one is made: both may not fit."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def _memory_errors(self, what: str) -> AbstractContextManager[None]:
        return memory_errors(self._context.stage.name, what, self._context.device, self.memory_options)


class MeasuredRowStage(MeasuredStage[WorkerT]):
    """A `MeasuredStage` whose worker runs each request in a row: a `RowStage`.

    rows: the present number. chosen_rows: the user's number, or None.
    """

    def __init__(
        self,
        context: StageContext,
        model: nn.Module,
        new_worker: Callable[[int], WorkerT],
        *,
        chosen_rows: int | None,
        graph_batch_sizes: Iterable[int] | None = None,
    ) -> None:
        """new_worker: makes a worker of so many rows. graph_batch_sizes: numbers of rows whose batches are captured; None takes
        sizes up to the number of rows."""
        self.rows = 1 if chosen_rows is None else chosen_rows
        self.chosen_rows = chosen_rows
        self._new_worker_of = new_worker
        self._graph_batch_sizes = graph_batch_sizes
        super().__init__(context, model, partial(new_worker, self.rows), captured_sizes(graph_batch_sizes, self.rows))
        self.footprint = replace(self.footprint, rows=self.rows)

    def count_row(self) -> RowCost:
        worker, fixed = self._counted(partial(self._new_worker_of, self.rows + 1))
        worker.close()
        return RowCost(bytes=fixed - self.footprint.fixed)

    def set_rows(self, rows: int) -> None:
        self._free_worker()
        self.rows = rows
        self._new_worker = partial(self._new_worker_of, rows)
        self._sizes = captured_sizes(self._graph_batch_sizes, rows) if self._context.graphs else ()
        self._worker, fixed = self._counted(self._new_worker)
        self.footprint = replace(self.footprint, fixed=fixed, rows=rows)


def capture_progress(stage: str, sizes: Sequence[SizeT]) -> Iterator[SizeT]:
    """Iterates over `sizes`, with a progress bar on stderr if that is a terminal."""
    yield from tqdm(sizes, desc=f"capturing {stage}", unit="graph", leave=False, disable=None)


def dry_run(name: str, worker: StageWorker, device: Device, messages: Sequence[Inbound]) -> None:
    """Sends `messages` to the worker of stage `name` and drives it until the requests that they open are finished.

    Waits for the device after every tick: only at start-up. Raises a failed request's error, or the out-of-memory error behind it,
    and StageError if a request is unfinished and no further progress occurs.
    """
    under_way = {message.request_id for message in messages if isinstance(message, Open)}
    worker.inbox.extend(messages)
    while under_way:
        moved = worker.tick()
        with may_sync(SyncPoint.MEASURE):
            device.synchronize()
        while worker.outbox:
            match worker.outbox.popleft():
                case Produced() as produced:
                    produced.close()
                case Failed(error=error):
                    # For `memory_errors` around this.
                    raise full_memory(error) or error
                case Done(request_id=request_id):
                    under_way.discard(request_id)
                    moved = True
        if not moved and under_way:
            raise StageError(name, "measuring its memory", "its requests do not end")
