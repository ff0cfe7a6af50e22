"""The device memory of a model: counted without a device, or measured on one."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import torch

from omni.cli.target import Target
from omni.device import open_device
from omni.device.meta import MetaDevice
from omni.engine import StageMemory, load_stages, measure_stages
from omni.engine.memory import Budget, budget_of, divide
from omni.errors import ConfigError
from omni.stage import Footprint


class StageShare(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, and counts of pages. working, pages: None unless measured. least, most: sums with the fewest and the most pages."""

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


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """budget: bytes that the stages share, None if unknown or unbounded. bound: its source. problem: why the stages do not fit, or
    why their memory is unknown."""

    measured: bool
    budget: int | None
    bound: str
    stages: Mapping[str, StageShare]
    problem: str | None = None


def sketch(target: Target) -> dict[str, Footprint]:
    """The footprint of each stage, from its shapes alone. Raises any error of building a stage."""
    loaded = load_stages(target.plan, target.checkpoint, MetaDevice(), target.engine.dtype, "dummy")
    return {name: stage.footprint for name, stage in loaded.items()}


def count_memory(target: Target) -> MemoryReport:
    """Reads no weight, and uses the device only if its free memory is the bound."""
    device = target.engine.device
    asked = target.engine.options.memory_bytes
    free = None
    if device.type == "cuda" and torch.cuda.is_available() and device.index < torch.cuda.device_count():
        free = open_device(str(device)).free_memory()
    bound = _bound(device, asked, free)
    try:
        footprints = sketch(target)
    # A plugin's model may raise anything on the meta device: the rest of the report stands.
    except Exception as error:
        problem = f"unknown: {type(error).__name__}: {error}"
        return MemoryReport(measured=False, budget=None, bound=bound, stages={}, problem=problem)
    stages = {name: StageShare.of(footprint, None) for name, footprint in footprints.items()}
    budget: Budget | None = None
    misfit = None
    try:
        budget = budget_of(asked, free, str(device))
        divide(footprints, {}, budget)
    except ConfigError as error:
        misfit = str(error)
    share = budget.bytes if budget is not None else None
    return MemoryReport(measured=False, budget=share, bound=bound, stages=stages, problem=misfit)


def measure_memory(target: Target) -> MemoryReport:
    """Loads and measures every stage and divides the pool, as at the start of an engine. Raises OmniError."""
    options = target.engine.options
    device = open_device(str(target.engine.device))
    free = device.free_memory()
    budget = budget_of(options.memory_bytes, free, str(device.torch_device))
    loaded = load_stages(target.plan, target.checkpoint, device, target.engine.dtype, options.load_format)
    footprints = {name: stage.footprint for name, stage in loaded.items()}
    divide(footprints, {}, budget)  # raises before measuring if the rest does not fit
    working = measure_stages(loaded, device)
    # Without a budget an engine measures nothing, so the division has no measurements.
    divided = divide(footprints, working, budget).items()
    memory = {name: replace(share, working=working[name]) for name, share in divided}
    return MemoryReport(
        measured=True,
        budget=budget.bytes if budget is not None else None,
        bound=_bound(device.torch_device, options.memory_bytes, free),
        stages={name: StageShare.of(footprint, memory[name]) for name, footprint in footprints.items()},
    )


def _bound(device: torch.device, asked: int | None, free: int | None) -> str:
    if asked is not None:
        return "engine.memory_bytes"
    if free is not None:
        return f"free on {device}, minus a reserve"
    if device.type == "cpu":
        return "none on the CPU: every stage gets its maximum of pages"
    return f"free on {device}, which does not exist here"
