"""The device memory of a model: counted without a device, or measured on one."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import torch

from omni.cli.target import Target
from omni.device import Device, open_device
from omni.device.meta import MetaDevice
from omni.engine import Placement, StageMemory, device_of, load_stages, measure_stages
from omni.engine.cut import CutStages
from omni.engine.memory import Budget, DeviceShare, budget_of
from omni.engine.rows import MemoryPlan, chosen_costs, divide_memory, footprints_of
from omni.errors import ConfigError
from omni.stage import Footprint, InsufficientMemoryError, LoadedStage, RowCost, most_rows


class StageShare(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, and counts of pages and rows. working, pages: None unless measured. least, most: sums with the fewest and the most
    pages. rows: None for a kind without rows."""

    rows: int | None
    weights: int
    fixed: int
    working: int | None
    page_bytes: int
    fewest_pages: int
    most_pages: int
    pages: int | None
    least: int
    most: int

    @classmethod
    def of(cls, footprint: Footprint, memory: StageMemory | None) -> "StageShare":
        fewest, most = footprint.fewest_pages, footprint.most_pages
        if footprint.chosen_pages is not None:
            fewest = most = footprint.chosen_pages
        working = memory.working if memory is not None else None
        needed = footprint.weights + footprint.fixed + (working or 0)
        return cls(
            rows=footprint.rows,
            weights=footprint.weights,
            fixed=footprint.fixed,
            working=working,
            page_bytes=footprint.page_bytes,
            fewest_pages=fewest,
            most_pages=most,
            pages=memory.pages if memory is not None else None,
            least=needed + fewest * footprint.page_bytes,
            most=needed + most * footprint.page_bytes,
        )


class RowShare(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a stage. chosen: whether the user set their number; else it follows from memory. row_bytes, row_pages: of fixed
    memory for each row, and of a request of typical length. typical: bytes of all rows with such requests. free: bytes of pages
    beyond them, for the prefix cache and longer requests; an upper limit unless measured."""

    rows: int
    chosen: bool
    row_bytes: int
    row_pages: int
    typical: int
    free: int


class RowsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows that follows from memory. stages: those with rows, also if the user set their number; empty where memory
    has no bound. most: the maximum."""

    rows: int
    most: int
    why: str
    stages: Mapping[str, RowShare]


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a place. budget: bytes that its stages share, None if unknown or unbounded. bound: its source. rows: None if every
    number of rows is the user's, or the stages do not fit. problem: why the stages do not fit, or why their memory is unknown."""

    measured: bool
    budget: int | None
    bound: str
    stages: Mapping[str, StageShare]
    rows: RowsReport | None = None
    problem: str | None = None


def sketch(target: Target, place: str | None = None) -> dict[str, LoadedStage]:
    """Stages from their shapes alone, for footprints. place: those with another rank than 0 there; None for all stages, rank 0 of
    one that is cut across engines. Raises any error of building a stage."""
    placement = Placement.of(target.plan.pipeline, str(target.engine.device))
    return load_stages(
        target.plan,
        target.checkpoint,
        MetaDevice(),
        dtype=target.engine.dtype,
        load_format="dummy",
        stages=None if place is None else placement.followed(place),
        ranks=CutStages.alone(placement, place).ranks,
    )


def count_memory(target: Target, placement: Placement) -> dict[str, MemoryReport]:
    """Counted memory, by place. Reads no weights, and uses a device only if its free memory is the bound. Raises ConfigError for
    settings with which a stage cannot be built."""
    asked = target.engine.options.memory_bytes
    found: dict[torch.device, int | None] = {}
    for device in map(device_of, placement.places):
        here = device.type == "cuda" and torch.cuda.is_available() and device.index < torch.cuda.device_count()
        found[device] = open_device(str(device)).free_memory() if here else None
    try:
        loaded = sketch(target)
        own = {
            place: loaded | sketch(target, place) if placement.followed(place) else loaded for place in placement.places
        }
    # A plugin's model may raise anything on the meta device; the rest of the report remains valid.
    except Exception as error:
        # A start would refuse these settings too. A lack of host memory is different: the machine of the start may have more.
        if isinstance(error, ConfigError) and not isinstance(error, InsufficientMemoryError):
            raise
        problem = f"unknown: {type(error).__name__}: {error}"
        bounds = {place: _bound(device_of(place), asked, found[device_of(place)]) for place in placement.places}
        return {
            place: MemoryReport(measured=False, budget=None, bound=bound, stages={}, problem=problem)
            for place, bound in bounds.items()
        }
    return {place: _count(place, placement, own[place], asked, found[device_of(place)]) for place in placement.places}


def _count(
    place: str, placement: Placement, loaded: Mapping[str, LoadedStage], asked: int | None, free: int | None
) -> MemoryReport:
    device = device_of(place)
    own = {name: stage for name, stage in loaded.items() if name in placement.on(place)}
    budget: Budget | None = None
    division: MemoryPlan | None = None
    misfit = None
    try:
        budget = budget_of(asked, free, str(device), _share(place, placement))
        division = divide_memory(own, MetaDevice(), budget, None, most_rows(device))
    except ConfigError as error:
        misfit = str(error)
    footprints = division.footprints if division is not None else footprints_of(own)
    return MemoryReport(
        measured=False,
        budget=budget.bytes if budget is not None else None,
        bound=_bound(device, asked, free),
        stages={name: StageShare.of(footprint, None) for name, footprint in footprints.items()},
        rows=_rows(own, division, budget, device) if division is not None else None,
        problem=misfit,
    )


def measure_memory(target: Target, placement: Placement) -> dict[str, MemoryReport]:
    """Measured memory, by place. Loads and measures every stage on the device of its place and divides the pool, as at the start of
    an engine. Raises OmniError."""
    devices = {device: open_device(str(device)) for device in map(device_of, placement.places)}
    free = {name: device.free_memory() for name, device in devices.items()}
    found: dict[str, MemoryReport] = {}
    for place in placement.places:
        device = devices[device_of(place)]
        found[place] = _measure(target, placement, place, device, free[device_of(place)])
        if device.torch_device.type == "cuda":
            torch.cuda.empty_cache()  # the stages of the next place take their memory
    return found


def _measure(target: Target, placement: Placement, place: str, device: Device, free: int | None) -> MemoryReport:
    options, name = target.engine.options, device_of(place)
    budget = budget_of(options.memory_bytes, free, str(name), _share(place, placement))
    own = placement.on(place)
    loaded = load_stages(
        target.plan,
        target.checkpoint,
        device,
        dtype=target.engine.dtype,
        load_format=options.load_format,
        stages=own,
        ranks=CutStages.alone(placement, place).ranks,
    )
    division = divide_memory(loaded, device, budget, measure_stages, most_rows(name))
    memory = division.memory
    if budget is None:
        # An engine measures nothing then.
        working = measure_stages(loaded, device)
        memory = {name: replace(share, working=working[name]) for name, share in memory.items()}
    return MemoryReport(
        measured=True,
        budget=budget.bytes if budget is not None else None,
        bound=_bound(name, options.memory_bytes, free),
        stages={name: StageShare.of(footprint, memory[name]) for name, footprint in division.footprints.items()},
        rows=_rows(loaded, division, budget, name),
    )


def _rows(
    loaded: Mapping[str, LoadedStage], division: MemoryPlan, budget: Budget | None, device: torch.device
) -> RowsReport | None:
    derived, most = division.derived, most_rows(device)
    if derived is None:
        return None
    chosen = chosen_costs(loaded) if budget is not None else {}
    costs = {**derived.costs, **chosen}
    if budget is None and device.type == "cpu":
        why = "the maximum, as nothing bounds memory"
    elif budget is None:
        why = f"the maximum, as the memory of {device} is unknown here"
    elif derived.rows == most:
        why = "the maximum, which fits"
    else:
        why = "the largest number that fits, with a request of typical length in every row"
    return RowsReport(
        rows=derived.rows,
        most=most,
        why=why,
        stages={
            name: _row_share(footprint, division.memory[name], costs[name], name in chosen)
            for name, footprint in division.footprints.items()
            if name in costs
        },
    )


def _row_share(footprint: Footprint, memory: StageMemory, cost: RowCost, chosen: bool) -> RowShare:
    rows = footprint.rows or 0
    pages = rows * cost.pages * footprint.page_bytes
    return RowShare(
        rows=rows,
        chosen=chosen,
        row_bytes=cost.bytes,
        row_pages=cost.pages,
        typical=rows * cost.bytes + pages,
        free=max(0, memory.pages * footprint.page_bytes - pages),
    )


def _share(place: str, placement: Placement) -> DeviceShare:
    """The engines of a device get equal parts of the memory that was free before the first."""
    return DeviceShare(0, [device_of(each) for each in placement.places].count(device_of(place)))


def _bound(device: torch.device, asked: int | None, free: int | None) -> str:
    if asked is not None:
        return "engine.memory_bytes"
    if free is not None:
        return f"free on {device}, minus a reserve"
    if device.type == "cpu":
        return "none on the CPU: every stage gets its maximum of rows, and pages for them"
    return f"unknown, as {device} does not exist here: give it with --set engine.memory_bytes=BYTES"
