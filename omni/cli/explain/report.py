"""The report of `omni explain`, as in its JSON."""

import msgspec

from omni.cli.memory import MemoryReport, count_memory, measure_memory
from omni.cli.target import Target
from omni.config import Setting
from omni.engine import ConnectorSelector, Placement
from omni.pipeline import Pipeline, Stage
from omni.process import runs_in_process


class PrefixCache(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a stage has a prefix cache, and why."""

    works: bool
    why: str


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """dtype: the stage's own, by default the engine's. places: one for each replica. prefix_cache: None for kinds without one."""

    name: str
    kind: str
    model: str
    priority: int
    dtype: str
    places: tuple[str, ...]
    prefix_cache: PrefixCache | None


class EdgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """An edge between two places. producer_place, consumer_place: of its stages. connector: its name. why: the reason for the
    choice. memory: of the tensors for the consumer, `"device"` or `"host"`."""

    producer: str
    consumer: str
    producer_place: str
    consumer_place: str
    adapter: str
    keyed: bool
    credit: int
    memory: str
    connector: str
    why: str


class OutputReport(msgspec.Struct, frozen=True, kw_only=True):
    modality: str
    stage: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """places: of the engines; each has a process of its own, unless it is the only one and `process` is false.

    main_stage: the stage that stage-less sampling parameters apply to; None if no stage samples. settings: all, with origins.
    """

    model: str
    folder: str
    family: str
    device: str
    process: bool
    places: tuple[str, ...]
    dtype: str
    load_format: str
    stages: list[StageReport]
    edges: list[EdgeReport]
    outputs: list[OutputReport]
    main_stage: str | None
    memory: MemoryReport
    settings: tuple[Setting, ...]


def make_report(model: str, target: Target, *, measure: bool) -> Report:
    """Raises OmniError: ConfigError or PluginError if an edge has no connector, and with `measure` any error of loading."""
    pipeline, engine = target.plan.pipeline, target.engine
    placement = Placement.of(pipeline, str(engine.device))
    return Report(
        model=model,
        folder=str(target.checkpoint.path),
        family=pipeline.family,
        device=str(engine.device),
        process=len(placement.places) > 1 or runs_in_process(engine.options, engine.device),
        places=placement.places,
        dtype=engine.dtype,
        load_format=engine.options.load_format,
        stages=[
            StageReport(
                name=stage.name,
                kind=stage.kind,
                model=stage.model,
                priority=stage.priority,
                dtype=stage.dtype or engine.dtype,
                places=placement.stages[stage.name],
                prefix_cache=_prefix_cache(pipeline, stage),
            )
            for stage in pipeline.order()
        ],
        edges=_edges(target, placement),
        outputs=[OutputReport(modality=output.modality, stage=output.stage) for output in pipeline.outputs],
        main_stage=pipeline.main_stage,
        memory=measure_memory(target) if measure else count_memory(target),
        settings=target.settings,
    )


def _prefix_cache(pipeline: Pipeline, stage: Stage) -> PrefixCache | None:
    wanted = msgspec.structs.asdict(stage.options).get("prefix_cache")
    if wanted is None:
        return None
    if not wanted:
        return PrefixCache(works=False, why=f"{stage.name}.prefix_cache is off")
    unkeyed = [edge.producer for edge in pipeline.edges_into(stage.name) if not edge.keyed]
    if unkeyed:
        why = f"not past tensors from {' and '.join(unkeyed)}: their adapter gives no content key"
        return PrefixCache(works=False, why=why)
    return PrefixCache(works=True, why="all inputs of the stage have a content key")


def _edges(target: Target, placement: Placement) -> list[EdgeReport]:
    selector = ConnectorSelector(target.plugins)
    reports = []
    for edge in target.plan.pipeline.edges:
        for producer, consumer in placement.pairs(edge):
            choice = selector.choose(edge, producer, consumer)  # raises the errors of a start
            reports.append(
                EdgeReport(
                    producer=edge.producer,
                    consumer=edge.consumer,
                    producer_place=producer,
                    consumer_place=consumer,
                    adapter=edge.adapter,
                    keyed=edge.keyed,
                    credit=edge.credit,
                    memory=edge.memory,
                    connector=choice.name,
                    why=choice.why,
                )
            )
    return reports
