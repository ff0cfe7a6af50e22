"""Builds an engine from a checkpoint: the pipeline, then its stages in order."""

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch

from omni.checkpoint import Checkpoint
from omni.connector import EdgeEnd
from omni.device import Device, SyncPoint, may_sync
from omni.device.meta import MetaDevice
from omni.engine.admission import Admission
from omni.engine.command_queue import CommandQueue
from omni.engine.cut import CutStages
from omni.engine.engine import Engine
from omni.engine.faults import Mailbox
from omni.engine.memory import ALONE, Budget, DeviceShare, StageMemory, budget_of
from omni.engine.options import EngineOptions
from omni.engine.orchestrator import Orchestrator
from omni.engine.peers import EngineEdges
from omni.engine.placement import ConnectorSelector, Placement
from omni.engine.resolve import DTYPES, Plan, check_formats
from omni.engine.rows import divide_again, divide_memory
from omni.engine.stage_order import StageOrder, sound_stages
from omni.engine.start import StartClock, StartReport
from omni.engine.unfit import unfit
from omni.engine.warm import WarmupPlan, compiling
from omni.errors import OmniError, errors_as, plugin_setup
from omni.kernels import CompileCounter, Compiled, CompileProcesses, process_count
from omni.parallel import Ranks
from omni.parallel.rendezvous import RankResources
from omni.pipeline import Pipeline, Stage
from omni.plugin import expect
from omni.plugin.manager import Plugins
from omni.stage import Listeners, LoadedStage, StageContext, StageWorker, memory_errors, most_rows
from omni.timeline.file import TimelineFile
from omni.timeline.trace import Trace
from omni.utils.log import safe_logger

_log = safe_logger(__name__)
# While transformers builds a module, its dtype is the process's default: two threads would leave it set.
_building = threading.RLock()


def load_stages(
    plan: Plan,
    checkpoint: Checkpoint,
    device: Device,
    *,
    dtype: str,
    load_format: str,
    graphs: bool = False,
    stages: Container[str] | None = None,
    listeners: Listeners | None = None,
    ranks: Mapping[str, Ranks] = MappingProxyType({}),
) -> dict[str, LoadedStage]:
    """Loads the weights of `stages`, by default all, onto `device`, in the pipeline's order.

    dtype: of stages without a dtype of their own. graphs: whether stages capture their steps at start. listeners: as in
    `StageContext`. ranks: of the stages that are cut across engines.

    On `omni.device.meta.MetaDevice` with load format `"dummy"`, for footprints, no weight is read and no memory
    allocated.
    Raises ConfigError and CheckpointError.
    """
    check_formats(dtype, load_format)
    loaded: dict[str, LoadedStage] = {}
    with _building, torch.inference_mode(), plan.naming_makers():
        for stage in plan.pipeline.order():
            if stages is not None and stage.name not in stages:
                continue
            own = DTYPES[stage.dtype or dtype]
            context = StageContext(
                stage=stage,
                options=stage.options,
                checkpoint=checkpoint,
                device=device,
                dtype=own,
                load_format=load_format,
                logits_processors=plan.processors,
                drafters=plan.drafters,
                graphs=graphs,
                listeners=listeners,
                ranks=ranks.get(stage.name),
            )
            kind, name = plan.kinds[stage.name], stage.name
            with _built(stage, kind.load, device), memory_errors(name, "weights and buffers", device):
                loaded[name] = expect(kind.load(context), LoadedStage, f"{name}.load", kind.load)  # type: ignore[type-abstract]
    # The default stream wrote zeroed buffers and random weights, and the stages' streams do not wait for it.
    with may_sync(SyncPoint.LOAD):
        device.synchronize()
    return loaded


def check_shapes(plan: Plan, checkpoint: Checkpoint, plugins: Plugins, options: EngineOptions) -> None:
    """Raises CheckpointError if weights do not have the stages' shapes. Allocates no memory, since a wrong width in
    config.json may exceed it."""
    assert options.dtype is not None, "the caller chose it for the device"
    assert options.device is not None, "the caller chose it"
    placement = Placement.of(plan.pipeline, options.device)
    _sketch(plan, checkpoint, options.dtype, options.load_format, CutStages.alone(placement))


def check_cuts(plan: Plan, checkpoint: Checkpoint, device: str, dtype: str) -> None:
    """Raises ConfigError if a stage cannot be cut as its settings say: by its model, which is built on the meta device, without
    weights. Before processes are started for the ranks. device, dtype: as `EngineOptions` has them, both chosen."""
    cut = CutStages.alone(Placement.of(plan.pipeline, device))
    if cut.ranks:
        _sketch(plan, checkpoint, dtype, "dummy", cut, cut.ranks)


def _sketch(
    plan: Plan,
    checkpoint: Checkpoint,
    dtype: str,
    load_format: str,
    cut: CutStages,
    stages: Container[str] | None = None,
) -> None:
    """Builds `stages`, by default all, on the meta device, for the errors."""
    try:
        load_stages(
            plan, checkpoint, MetaDevice(), dtype=dtype, load_format=load_format, stages=stages, ranks=cut.ranks
        )
    except (RuntimeError, NotImplementedError) as error:
        # This plugin's model does not support the meta device: loading checks its shapes.
        _log.debug("stages could not be checked beforehand: %s", error)


def _built(stage: Stage, code: object, device: Device) -> AbstractContextManager[None]:
    """Attributes errors of a model that is built to the plugin, or to config.json too."""

    def failed(error: BaseException) -> OmniError | None:
        if isinstance(error, RuntimeError) and isinstance(device, MetaDevice):
            return None  # for `check_shapes`
        field, unfitting = f"pipeline.stages.{stage.name}.model", f"stage {stage.name!r} cannot be built from it"
        path = stage.model or f"kind {stage.kind!r}"
        return unfit(error, code, field=field, unbuilt="cannot be built: ", unfitting=unfitting, path=path)

    return errors_as(failed)


def build_engine(
    plan: Plan,
    checkpoint: Checkpoint,
    plugins: Plugins,
    device: Device,
    options: EngineOptions,
    *,
    command_queue: CommandQueue | None = None,
    place: str | None = None,
    share: DeviceShare = ALONE,
    take_timeline: Callable[[Trace], object] | None = None,
    rank_resources: Mapping[str, RankResources] = MappingProxyType({}),
    compile_processes: CompileProcesses | None = None,
) -> Engine:
    """Loads the stages of a place onto `device`, measures the memory of steps if it is bounded, and divides the rest
    into pages.

    command_queue: see `Engine`. place: None for all stages. share: of the device's memory. take_timeline: gets the timeline
    when the engine closes, instead of the file. rank_resources: of the stages with a rank on the place. compile_processes: started
    before; the caller closes them. None starts them if they are needed.
    """
    here = place if place is not None else str(device.torch_device)
    placement = Placement.of(plan.pipeline, options.device or here) if place is not None else _all_on(plan, here)
    own = [stage.name for stage in plan.pipeline.order() if stage.name in placement.on(here)]
    ends = _open_ends(plan.pipeline, plugins, placement, here, device)
    listeners = Listeners(device.seconds, short=options.short_slack)
    by_slack = listeners if _scheduling(options, device) == "slack" else None
    cut = CutStages()
    try:
        budget = budget_of(options.memory_bytes, device.free_memory(), str(device.torch_device), share)
        timeline = _timeline_file(options, device, own, take_timeline)
        # All before the first weights: after those the ranks are seconds or minutes apart.
        cut = CutStages.open(placement, here, device.torch_device, rank_resources)
        started = _start(
            plan,
            checkpoint,
            device,
            options,
            own=own,
            budget=budget,
            engines=len(placement.places),
            listeners=by_slack,
            cut=cut,
            compile_processes=compile_processes,
        )
    except BaseException:
        cut.close()
        ends.close_after_error()
        raise
    orchestrator = Orchestrator(
        plan.pipeline,
        workers=started.workers,
        adapters=plan.adapters,
        ends=ends,
        admission=Admission(options.max_active_requests, options.max_waiting_requests),
        place=here,
        is_held=command_queue.holds if command_queue is not None else _never,
        listeners=listeners,
    )
    _watch_ranks(cut, command_queue)
    if timeline is not None:
        timeline.start()
    return Engine(
        device,
        orchestrator,
        workers=started.workers,
        ends=ends,
        memory=started.memory,
        timeline=timeline,
        command_queue=command_queue,
        stage_order=_stage_order(plan.pipeline, started.workers, by_slack, options),
        report=started.report,
        cut=cut,
    )


def _all_on(plan: Plan, place: str) -> Placement:
    assert all(stage.tensor_parallel == 1 for stage in plan.pipeline.stages), "ranks are in processes"
    return Placement({stage.name: (place,) for stage in plan.pipeline.stages}, place)


def _open_ends(pipeline: Pipeline, plugins: Plugins, placement: Placement, here: str, device: Device) -> EngineEdges:
    """The senders of this place: before the memory is divided, as their pools take of it."""
    selector, led = ConnectorSelector(plugins), placement.on(here) - placement.followed(here)
    edges = [*selector.open_edges(pipeline, placement, here), *selector.open_outputs(pipeline, led, here)]
    return EngineEdges(here, edges, lambda edge: EdgeEnd(edge.name, device, edge.pool_bytes))


def _timeline_file(
    options: EngineOptions, device: Device, stages: Sequence[str], take: Callable[[Trace], object] | None
) -> TimelineFile | None:
    return TimelineFile(options.timeline, device, tuple(stages), take) if options.timeline is not None else None


def _stage_order(
    pipeline: Pipeline, workers: Mapping[str, StageWorker], listeners: Listeners | None, options: EngineOptions
) -> StageOrder | None:
    """listeners: None if stages do not schedule by slack."""
    if listeners is None:
        return None
    return StageOrder(tuple(workers), sound_stages(pipeline), listeners, ample=options.ample_slack)


def _watch_ranks(cut: CutStages, command_queue: CommandQueue | None) -> None:
    """The messages of other ranks end a wait of the loop."""
    for ranks in cut.ranks.values():
        if ranks.channel.descriptor is not None:
            assert command_queue is not None, "ranks are in processes"
            command_queue.watch(ranks.channel.descriptor)


def _scheduling(options: EngineOptions, device: Device) -> str:
    return options.scheduling or ("slack" if device.torch_device.type == "cuda" else "fixed")


@dataclass(frozen=True, slots=True)
class _Started:
    memory: Mapping[str, StageMemory]
    workers: Mapping[str, StageWorker]
    report: StartReport


def _start(
    plan: Plan,
    checkpoint: Checkpoint,
    device: Device,
    options: EngineOptions,
    *,
    own: Sequence[str],
    budget: Budget | None,
    engines: int,
    listeners: Listeners | None,
    cut: CutStages,
    compile_processes: CompileProcesses | None,
) -> _Started:
    """own: the stages of this engine, in the pipeline's order. engines: of the model. listeners: as in `StageContext`."""
    assert options.dtype is not None, "the caller chose it for the device"
    graphs = device.captures if options.graphs is None else options.graphs
    load = partial(load_stages, plan, checkpoint, dtype=options.dtype, graphs=graphs, listeners=listeners)
    alone, most = cut.silenced.ranks, most_rows(device.torch_device)
    clock, counter = StartClock(), CompileCounter()

    def load_empty(onto: Device, name: str) -> LoadedStage:
        return load(onto, load_format="dummy", stages=(name,), ranks=alone)[name]

    settings = checkpoint.config, plan.pipeline, sorted(plan.processors), options.dtype, graphs, listeners is not None
    kernels = WarmupPlan(device.kernel_device, own, load_empty, budget, settings, plan.packages())
    with compiling(kernels, process_count(options.compile_processes, engines), compile_processes) as warmup:
        with clock.part("load"):
            loaded = load(device, load_format=options.load_format, stages=own, ranks=cut.ranks)
        with clock.part("compile"):
            compiled = warmup.wait() if warmup is not None else Compiled()
    # Elsewhere no kernel is launched, and Triton need not be imported.
    with counter.counting() if device.kernel_device.type == "cuda" else nullcontext():
        with clock.part("measure"):
            with cut.silent():  # engines measure different numbers of times
                division = divide_memory(loaded, device, budget, measure_stages, most)
            memory = cut.agree(division, partial(divide_again, loaded, budget, most)).memory
        if not cut.ranks:  # a collective may set up connections while it is captured, which takes all ranks
            device.defer_captures()
        with clock.part("capture"):
            workers = _start_workers(plan, loaded, memory, device)
    if warmup is not None and counter.compiled:
        warmup.forget_record()
    report = StartReport(
        **clock.seconds,
        kernels_known=compiled.known,
        kernels_compiled=compiled.compiled,
        kernels_late=counter.compiled,
    )
    _log.debug("%s", report)
    return _Started(memory, workers, report)


def _start_workers(
    plan: Plan, loaded: Mapping[str, LoadedStage], memory: Mapping[str, StageMemory], device: Device
) -> dict[str, StageWorker]:
    """The workers of loaded stages, which allocate their pages and capture their steps."""
    workers: dict[str, StageWorker] = {}
    with torch.inference_mode():
        for name, stage in loaded.items():
            field, remedy = f"{name}.start", f"correct kind {plan.pipeline.stage(name).kind!r}"
            with (
                plugin_setup(field, remedy, stage.start),
                memory_errors(name, f"{memory[name].pages} pages", device),
            ):
                worker = expect(stage.start(memory[name].pages), StageWorker, field, stage.start)  # type: ignore[type-abstract]
                Mailbox.of(worker)  # raises for an inbox or outbox that loses messages
                workers[name] = worker
    with may_sync(SyncPoint.LOAD):
        device.synchronize()
    return workers


def _never(request_id: str) -> bool:
    return False


def measure_stages(loaded: Mapping[str, LoadedStage], device: Device) -> dict[str, int]:
    """The working memory of each stage in bytes. Raises ConfigError if memory is insufficient for its largest steps."""
    working: dict[str, int] = {}
    with torch.inference_mode():
        for name, stage in loaded.items():
            field = f"pipeline.stages.{name}.model"
            with plugin_setup(field, "correct it", stage.measure), memory_errors(name, "the largest step", device):
                working[name] = expect(stage.measure(), int, f"{name}.measure", stage.measure)
    return working
