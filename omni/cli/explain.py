"""`omni explain`: the stages and settings of a model, and their origins, as text or as JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from omni.cli.drawing import draw
from omni.cli.memory import MemoryReport, count_memory, measure_memory
from omni.cli.options import Choices, echo, echo_json, takes_lines
from omni.cli.target import Target, resolve_target
from omni.config import Setting
from omni.engine import ConnectorSelector, Placement, device_of
from omni.parallel import RankLayout
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni.process.select import runs_in_process
from omni.utils.table import columns


class PrefixCache(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a stage has a prefix cache, and why."""

    works: bool
    why: str


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """dtype: the stage's own, by default the engine's. places: one for each replica, or for each rank if there are several.
    tensor_parallel, expert_parallel, pipeline_parallel: as in `Stage`. replicated: why `tensor_parallel` gave the stage replicas
    instead of ranks; else None, and so is prefix_cache for kinds without one."""

    name: str
    kind: str
    model: str | None
    priority: int
    dtype: str
    places: tuple[str, ...]
    tensor_parallel: int
    expert_parallel: bool
    pipeline_parallel: int
    replicated: str | None
    prefix_cache: PrefixCache | None

    @property
    def layout(self) -> RankLayout:
        return RankLayout(self.tensor_parallel, self.pipeline_parallel)


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


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """places: of the engines; each has a process of its own, unless it is the only one and `process` is false. main_stage: the
    stage that stage-less sampling parameters apply to; None if no stage samples. memory: by place. extensions: the applied ones, in
    order. settings: all, with origins."""

    model: str
    folder: str
    family: str
    extensions: tuple[str, ...]
    device: str
    process: bool
    places: tuple[str, ...]
    dtype: str
    load_format: str
    stages: list[StageReport]
    edges: list[EdgeReport]
    outputs: tuple[PipelineOutput, ...]
    main_stage: str | None
    memory: Mapping[str, MemoryReport]
    settings: tuple[Setting, ...]


def make_report(model: str, target: Target, *, measure: bool) -> Explanation:
    """Raises OmniError: ConfigError or PluginError if an edge has no connector, ConfigError if a stage cannot be built with its
    settings, and with `measure` any error of loading."""
    pipeline, engine = target.plan.pipeline, target.engine
    placement = Placement.of(pipeline, str(engine.device))
    return Explanation(
        model=model,
        folder=str(target.checkpoint.path),
        family=pipeline.family,
        extensions=target.plan.extensions,
        device=str(engine.device),
        process=runs_in_process(engine.options, engine.device, len(placement.places)),
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
                places=placement.ranks.get(stage.name, placement.stages[stage.name]),
                tensor_parallel=stage.tensor_parallel,
                expert_parallel=stage.expert_parallel,
                pipeline_parallel=stage.pipeline_parallel,
                replicated=target.plan.replicated.get(stage.name),
                prefix_cache=_prefix_cache(pipeline, stage),
            )
            for stage in pipeline.order()
        ],
        edges=list(_edges(target, placement)),
        outputs=pipeline.outputs,
        main_stage=pipeline.main_stage,
        memory=measure_memory(target, placement) if measure else count_memory(target, placement),
        settings=(*engine.settings, *target.plan.settings),
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


def _edges(target: Target, placement: Placement) -> Iterator[EdgeReport]:
    selector = ConnectorSelector(target.plugins)
    for edge in target.plan.pipeline.edges:
        for producer, consumer in placement.pairs(edge):
            choice = selector.choose(edge, producer, consumer)  # raises the errors of a start
            yield EdgeReport(
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


_LONGEST_VALUE = 34


def as_text(report: Explanation, pipeline: Pipeline, *, ascii_only: bool) -> str:
    """The drawing, then a section for each other part of the report."""
    weights = "random weights" if report.load_format == "dummy" else "weights from the checkpoint"
    several = len(report.places) > 1
    place = "processes of their own" if several else "a process of its own" if report.process else "a thread"
    extended = f" with {', '.join(report.extensions)}" if report.extensions else ""
    settings = ((setting.path, _value(setting.value), setting.origin) for setting in report.settings)
    lines = [
        f"{report.model}: family {report.family}{extended}, on {report.device} in {report.dtype}, in {place}, {weights}",
        "",
        draw(
            pipeline, {stage.name: _drawn(stage) for stage in report.stages} if several else {}, ascii_only=ascii_only
        ),
        *_section("Processes", _processes(report) if several else ()),
        *_section("Stages", _stages(report.stages)),
        *_section("Outputs", _outputs(report)),
        *_section("Connectors", _connectors(report)),
        *chain.from_iterable(
            _section(f"Memory{f' on {place}' if several else ''}, in bytes", _memory(memory))
            for place, memory in report.memory.items()
        ),
        *_section("Settings", columns([("PATH", "VALUE", "ORIGIN"), *settings])),
    ]
    return "\n".join(lines)


def _section(title: str, lines: Iterable[str]) -> list[str]:
    body = list(lines)
    return ["", title, *body] if body else []


def _stages(stages: list[StageReport]) -> Iterator[str]:
    rows = [(stage.name, stage.kind, str(stage.priority), stage.dtype, stage.model or "-") for stage in stages]
    yield from columns([("STAGE", "KIND", "PRIORITY", "DTYPE", "MODEL"), *rows], right=(2,))
    for stage in stages:
        if stage.replicated is not None:
            yield f"  {stage.name}: {stage.replicated}"
        if stage.prefix_cache is not None:
            state = "works" if stage.prefix_cache.works else "does not work"
            yield f"  {stage.name}: prefix cache {state}: {stage.prefix_cache.why}"


def _drawn(stage: StageReport) -> Sequence[str]:
    """The places of a stage, in its box."""
    if stage.layout.size == 1:
        return stage.places
    return [f"{place}, rank {rank}" for rank, place in enumerate(stage.places)]


def _processes(report: Explanation) -> Iterator[str]:
    rows = [
        (place, str(device_of(place)), ", ".join(_held(each, place) for each in report.stages if place in each.places))
        for place in report.places
    ]
    yield from columns([("PLACE", "DEVICE", "STAGES"), *rows])


def _held(stage: StageReport, place: str) -> str:
    """What a place holds of a stage."""
    layout = stage.layout
    if layout.size == 1:
        return stage.name
    rank = stage.places.index(place)
    layers = f" (layer range {layout.position(rank) + 1} of {layout.pipeline})" if layout.pipeline > 1 else ""
    experts = " (experts divided)" if stage.expert_parallel else ""
    return f"rank {rank} of {layout.size} of {stage.name}{layers}{experts}"


def _outputs(report: Explanation) -> Iterator[str]:
    rows = [(each.modality, each.stage, "by default" if each.default else "on request") for each in report.outputs]
    yield from columns([("MODALITY", "STAGE", "GIVEN"), *rows])
    if report.main_stage is not None:
        yield f"  stage-less sampling parameters apply to {report.main_stage}"


def _connectors(report: Explanation) -> Iterator[str]:
    if report.edges:
        rows = [
            (f"{edge.producer} -> {edge.consumer}{_places(edge, report)}", edge.connector, edge.memory, edge.why)
            for edge in report.edges
        ]
        yield from columns([("EDGE", "CONNECTOR", "MEMORY", "WHY"), *rows])


def _places(edge: EdgeReport, report: Explanation) -> str:
    """The places of an edge that connects several pairs of them."""
    pairs = [each for each in report.edges if (each.producer, each.consumer) == (edge.producer, edge.consumer)]
    return f" ({edge.producer_place} -> {edge.consumer_place})" if len(pairs) > 1 else ""


def _memory(memory: MemoryReport) -> Iterator[str]:
    if memory.stages:
        yield from _fixed_parts(memory)
        yield from _pages(memory)
        yield from _rows(memory)
    budget = f"{memory.budget:,}, {memory.bound}" if memory.budget is not None else memory.bound
    yield f"  pool: {budget}"
    if memory.measured:
        yield "  working memory and pages: measured and divided as at start"
    elif memory.stages:
        yield "  counted from shapes, no weight read; --measure adds working memory and divides the pool"
    if memory.problem is not None:
        first, *rest = memory.problem.splitlines()
        yield from (f"  problem: {first}", *(f"    {line}" for line in rest))


def _fixed_parts(memory: MemoryReport) -> Iterator[str]:
    parts = ("rows", "weights", "fixed", "working", "least", "most")
    shares = {name: msgspec.structs.asdict(share) for name, share in memory.stages.items()}
    rows = [(name, *(_number(share[part]) for part in parts)) for name, share in shares.items()]
    sums = ([share[part] for share in shares.values()] for part in parts[1:])
    total = ("sum", "", *(_number(None if None in numbers else sum(numbers)) for numbers in sums))
    yield from columns([("STAGE", *(part.upper() for part in parts)), *rows, total], right=(1, 2, 3, 4, 5, 6))


def _pages(memory: MemoryReport) -> Iterator[str]:
    paged = {name: share for name, share in memory.stages.items() if share.page_bytes}
    if not paged:
        return
    yield ""
    header = ("STAGE", "BYTES PER PAGE", "FEWEST PAGES", "MOST PAGES", "PAGES")
    rows = [
        (name, _number(share.page_bytes), _number(share.fewest_pages), _number(share.most_pages), _number(share.pages))
        for name, share in paged.items()
    ]
    yield from columns([header, *rows], right=(1, 2, 3, 4))
    caching = [name for name, share in paged.items() if share.most_pages > (share.rows or 0) * share.fewest_pages]
    if caching:
        yield f"  {', '.join(caching)}: pages beyond those of all rows at full length are for the prefix cache"


def _rows(memory: MemoryReport) -> Iterator[str]:
    rows = memory.rows
    if rows is None:
        return
    if rows.stages:
        yield ""
        parts = ("BYTES PER ROW", "PAGES PER ROW", "BYTES OF ALL ROWS", "LEFT FOR THE PREFIX CACHE")
        numbers = [
            (
                name,
                _number(row.rows),
                "set by the user" if row.chosen else "from memory",
                *map(_number, (row.row_bytes, row.row_pages, row.typical, row.free)),
            )
            for name, row in rows.stages.items()
        ]
        yield from columns([("STAGE", "ROWS", "ORIGIN", *parts), *numbers], right=(1, 3, 4, 5, 6))
    bound = "" if memory.measured or memory.budget is None else ", before the working memory of steps"
    yield f"  rows: {rows.rows} of at most {rows.most}{bound}: {rows.why}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _value(value: object) -> str:
    """A value in the syntax of `--set`, shortened to one line."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) <= _LONGEST_VALUE:
        return text
    if not isinstance(value, tuple | list):
        return f"{text[: _LONGEST_VALUE - 3]}..."
    end = f", ... {len(value)} in all]"
    return text[: _LONGEST_VALUE - len(end)].rpartition(",")[0] + end


def explain(model: str, choices: Choices, *, measure: bool, as_json: bool) -> None:
    """Prints a report, or the fields of `omni.cli.explain.Report` as JSON. Raises OmniError."""
    target = resolve_target(model, choices)
    report = make_report(model, target, measure=measure)
    if as_json:
        echo_json(report)
    else:
        echo(as_text(report, target.plan.pipeline, ascii_only=not takes_lines()))
