"""The number of rows of stages, from the memory of their device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from omni.device import Device
from omni.engine.memory import Budget, StageMemory, divide
from omni.errors import plugin_setup
from omni.plugin import expect
from omni.stage import ROW_NUMBERS, Footprint, InsufficientMemoryError, LoadedStage, RowCost, RowStage

Measure = Callable[[Mapping[str, LoadedStage], Device], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class DerivedRows:
    """rows: of every stage of the place whose number follows from memory. costs: of a row, by stage; empty where memory has no
    bound."""

    rows: int
    costs: Mapping[str, RowCost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a place's stages. derived: None if the user chose all numbers of rows, or no stage has rows."""

    footprints: Mapping[str, Footprint]
    memory: Mapping[str, StageMemory]
    derived: DerivedRows | None


def divide_memory(
    loaded: Mapping[str, LoadedStage], device: Device, budget: Budget | None, measure: Measure | None, most: int
) -> MemoryPlan:
    """Sets the number of rows of stages whose users left it open, and divides the memory.

    measure: the working memory of stages; None counts without it. It is called where memory is bounded, and again for fewer rows
    where the first number of rows turns out not to fit. most: the maximum (`omni.stage.most_rows`).

    All of these stages get the same number, the largest of `ROW_NUMBERS` up to `most` that fits: a request passes through all of
    them, and a row of one stage without a row of the next only waits. A number fits if, beside all other memory, a request of
    typical length in every row fits. One row fits if a request of full length does. The stages and the budget alone
    determine the number. Raises InsufficientMemoryError, with the numbers of every stage, if one row does not fit.
    """
    stages = {
        name: stage for name, stage in loaded.items() if isinstance(stage, RowStage) and stage.chosen_rows is None
    }
    with torch.inference_mode():
        if budget is None:
            _set_rows(stages, most)
            # Nothing limits the pages either: half of the pages that all rows could use is enough.
            halves = {name: _halved(f) if name in stages else f for name, f in footprints_of(loaded).items()}
            return MemoryPlan(halves, divide(halves, {}, None), DerivedRows(most) if stages else None)
        if not stages:
            footprints = _with_caches(footprints_of(loaded), most)
            least = divide(footprints, {}, budget)  # raises before measuring if the rest does not fit
            return MemoryPlan(
                footprints, divide(footprints, measure(loaded, device), budget) if measure else least, None
            )
        return _Search(loaded, stages, device, budget, measure, most).run()


def divide_again(
    loaded: Mapping[str, LoadedStage], budget: Budget | None, most: int, plan: MemoryPlan, rows: Mapping[str, int]
) -> MemoryPlan:
    """Returns the plan for these fewer `rows` of stages whose number of rows followed from memory. Other such stages get no more
    rows.

    Needs no new measurement: fewer rows work in no more memory. budget, most: the values that the first plan was made with.
    """
    derived = {
        name: stage for name, stage in loaded.items() if isinstance(stage, RowStage) and stage.chosen_rows is None
    }
    most_useful = min((count for name, count in rows.items() if name in derived), default=most)
    counts = {name: rows.get(name, min(most_useful, stage.rows)) for name, stage in derived.items()}
    with torch.inference_mode():
        for name, stage in derived.items():
            if stage.rows != counts[name]:
                _set_rows({name: stage}, counts[name])
        footprints = footprints_of(loaded)
    costs = plan.derived.costs if plan.derived is not None else {}
    if budget is None:
        footprints |= {name: _halved(footprints[name]) for name in counts}
    else:
        footprints = _with_caches(footprints, most)
    working = {name: memory.working or 0 for name, memory in plan.memory.items()}
    typical = {name: count * costs[name].pages for name, count in counts.items() if name in costs}
    memory = divide(footprints, working if budget is not None else {}, budget, typical)
    return MemoryPlan(footprints, memory, DerivedRows(min(counts.values()), costs) if counts else None)


def chosen_costs(loaded: Mapping[str, LoadedStage]) -> dict[str, RowCost]:
    """The cost of a row of each stage whose number of rows the user chose. `DerivedRows.costs` has those of the others."""
    with torch.inference_mode():
        return {
            name: stage.count_row()
            for name, stage in loaded.items()
            if isinstance(stage, RowStage) and stage.chosen_rows is not None
        }


def footprints_of(loaded: Mapping[str, LoadedStage]) -> dict[str, Footprint]:
    return {name: _footprint(name, stage) for name, stage in loaded.items()}


def _footprint(name: str, stage: LoadedStage) -> Footprint:
    path = f"{name}.footprint"
    with plugin_setup(path, "correct it", type(stage)):
        return expect(stage.footprint, Footprint, path, type(stage))


def _halved(footprint: Footprint) -> Footprint:
    return replace(footprint, most_pages=max(footprint.fewest_pages, footprint.most_pages // 2))


def _with_caches(footprints: Mapping[str, Footprint], most: int) -> dict[str, Footprint]:
    """Pages that the rows cannot use, up to those of the maximum of rows, go to the prefix caches."""
    return {
        name: replace(f, most_pages=max(f.most_pages, most * f.fewest_pages)) if f.caches else f
        for name, f in footprints.items()
    }


def _set_rows(stages: Mapping[str, RowStage], rows: int) -> None:
    for name, stage in stages.items():
        with plugin_setup(f"{name}.set_rows", "correct it", type(stage)):
            stage.set_rows(rows)


class _Search:
    """Searches the largest number of rows that fits: estimated from counts first, then allocated and measured."""

    def __init__(
        self,
        loaded: Mapping[str, LoadedStage],
        stages: Mapping[str, RowStage],
        device: Device,
        budget: Budget,
        measure: Measure | None,
        most: int,
    ) -> None:
        self._loaded = loaded
        self._stages = stages
        self._device = device
        self._budget = budget
        self._measure = measure
        self._most = most
        # They have one row if they are new, and any number if they were divided before.
        _set_rows({name: stage for name, stage in stages.items() if stage.rows != 1}, 1)
        self._costs = {name: stage.count_row() for name, stage in stages.items()}
        self._single = footprints_of(loaded)
        self._measured: list[tuple[int, dict[str, int]]] = []
        """The working memory of all stages by number of rows, as measured."""
        self._kept: dict[str, int] = {}
        """Memory that stayed allocated after a stage's measurement, such as the code of kernels. Later measurements do not include
        it."""

    def run(self) -> MemoryPlan:
        divide(self._single, {}, self._budget)  # raises at once if one row does not fit
        below = self._most + 1
        while True:
            rows = self._estimate(below)
            plan = self._try(rows)
            if plan is not None:
                return plan
            # Without a measurement it is only known that the number was too large.
            below = rows if self._measured and self._measured[-1][0] == rows else rows // 2 + 1

    def _try(self, rows: int) -> MemoryPlan | None:
        """The plan with so many rows; None if it does not fit. Raises InsufficientMemoryError if a single row does not."""
        try:
            _set_rows(self._stages, rows)
            footprints = _with_caches(footprints_of(self._loaded), self._most)
            divide(footprints, {}, self._budget)
            working = self._working(rows)
            typical = {name: rows * cost.pages for name, cost in self._costs.items()}
            memory = divide(footprints, working, self._budget, typical)
        except InsufficientMemoryError:
            if rows == 1:
                raise
            return None
        if rows > 1 and self._needed(footprints, working, rows) > self._budget.bytes:
            return None
        return MemoryPlan(footprints, memory, DerivedRows(rows, self._costs))

    def _working(self, rows: int) -> dict[str, int]:
        """Working memory of all stages. Stages without derived rows are measured once."""
        if self._measure is None:
            return {}
        working: dict[str, int] = {}
        earlier = self._measured[-1][1] if self._measured else {}
        for name, stage in self._loaded.items():
            if name in earlier and name not in self._stages:
                working[name] = earlier[name]
                continue
            before = self._device.free_memory()
            kept = self._kept.get(name, 0)
            working[name] = kept + self._measure({name: stage}, self._device)[name]
            after = self._device.free_memory()
            if before is not None and after is not None:
                self._kept[name] = kept + max(before - after, 0)
        self._measured.append((rows, working))
        return working

    def _estimate(self, below: int) -> int:
        """The largest number of rows under `below` that seems to fit; 1 if none does."""
        for rows in reversed(ROW_NUMBERS):
            if rows < below and self._needed(self._single, self._expected(rows), rows) <= self._budget.bytes:
                return rows
        return 1

    def _needed(self, footprints: Mapping[str, Footprint], working: Mapping[str, int], rows: int) -> int:
        """Bytes of all stages with a request of typical length in each of `rows` rows. footprints: those of any number of rows."""
        total = 0
        for name, footprint in footprints.items():
            pages, fixed = footprint.fewest_pages, footprint.fixed
            if name in self._costs:
                cost, counted = self._costs[name], footprint.rows or 0
                pages, fixed = max(pages, rows * cost.pages), fixed + (rows - counted) * cost.bytes
            if footprint.chosen_pages is not None:
                pages = footprint.chosen_pages
            total += footprint.weights + fixed + working.get(name, 0) + pages * footprint.page_bytes
        return total

    def _expected(self, rows: int) -> dict[str, int]:
        """The working memory with so many rows: on the line through the last two measurements, or through one and none for no row.
        The result may be too small once, but not twice if the memory is linear in the rows."""
        if not self._measured:
            return {}
        count, working = self._measured[-1]
        other, others = self._measured[-2] if len(self._measured) > 1 else (0, dict.fromkeys(working, 0))
        return {
            name: min(size, max(0, size - (others[name] - size) * (count - rows) // (other - count)))
            if name in self._stages
            else size
            for name, size in working.items()
        }
