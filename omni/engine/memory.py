"""A device's memory, divided among its stages."""

from collections.abc import Mapping
from dataclasses import dataclass

from omni.errors import ConfigError
from omni.stage import Footprint, InsufficientMemoryError
from omni.utils.table import columns

_RESERVE_SHARE = 50
_RESERVE_FLOOR = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """A stage's bytes of device memory. working: peak of its steps; None if not measured. rows: number of requests that run at
    once; None for a kind without rows."""

    weights: int
    fixed: int
    working: int | None
    page_bytes: int
    pages: int
    rows: int | None = None

    @property
    def total(self) -> int:
        return self.weights + self.fixed + (self.working or 0) + self.page_bytes * self.pages


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes for all stages. field: the setting that raises the number."""

    bytes: int
    field: str


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """An engine's part of its device: engines load one after the other and get equal parts. index: of this one, from 0."""

    index: int = 0
    engines: int = 1


ALONE = DeviceShare()


def budget_of(asked: int | None, free: int | None, device: str, share: DeviceShare = ALONE) -> Budget | None:
    """The stages' budget: `asked` (`engine.memory_bytes`), by default the `free` memory of the device minus a reserve.
    None if the memory is unbounded.

    share: of the engine, if there are several on the device.

    The reserve, 2% and at least 256 MiB, covers memory that one measurement does not show: fragmentation of the
    allocator by other batch sizes, and later allocations of other processes.
    Raises ConfigError if `asked` exceeds `free`.
    """
    if asked is not None:
        if free is not None and asked > free:
            raise ConfigError(
                "engine.memory_bytes", f"{asked:,} are more than the {free:,} free on {device}", "lower it"
            )
        return Budget(asked // share.engines, "engine.memory_bytes")
    if free is None:
        return None
    free //= share.engines - share.index
    return Budget(free - max(free // _RESERVE_SHARE, _RESERVE_FLOOR), "engine.device")


def divide(
    footprints: Mapping[str, Footprint],
    working: Mapping[str, int],
    budget: Budget | None,
    typical: Mapping[str, int] | None = None,
) -> dict[str, StageMemory]:
    """The memory of each stage, with its pages. Without a budget, each stage gets the pages of its options, by default
    its maximum.

    With a budget, stages get the pages of their options, or their minimum. The rest is divided in proportion: first to the pages
    that each lacks of those in `typical`, which are of typical requests in all rows, then to those that each could still use. Less
    than one page of each stage remains, unless every stage is at its maximum. Raises InsufficientMemoryError, with the numbers of
    every stage, if the minimum does not fit.
    """
    if budget is None:
        return {name: _memory(f, None, _pages(f, f.most_pages)) for name, f in footprints.items()}
    least = {name: _memory(f, working.get(name), _pages(f, f.fewest_pages)) for name, f in footprints.items()}
    rest = budget.bytes - sum(memory.total for memory in least.values())
    if rest < 0:
        raise _too_small(least, budget)
    pages = {name: memory.pages for name, memory in least.items()}
    for goal in (typical or {}, {name: f.most_pages for name, f in footprints.items()}):
        lacking = {
            name: max(_pages(f, min(goal.get(name, 0), f.most_pages)) - pages[name], 0)
            for name, f in footprints.items()
        }
        wanted = sum(count * footprints[name].page_bytes for name, count in lacking.items())
        given = min(rest, wanted)
        pages = {name: count + (given * lacking[name] // wanted if wanted else 0) for name, count in pages.items()}
        rest -= given
    return {name: _memory(f, working.get(name), pages[name]) for name, f in footprints.items()}


def _pages(footprint: Footprint, default: int) -> int:
    return default if footprint.chosen_pages is None else footprint.chosen_pages


def _memory(f: Footprint, working: int | None, pages: int) -> StageMemory:
    return StageMemory(
        weights=f.weights, fixed=f.fixed, working=working, page_bytes=f.page_bytes, pages=pages, rows=f.rows
    )


def _too_small(least: Mapping[str, StageMemory], budget: Budget) -> InsufficientMemoryError:
    needed = sum(memory.total for memory in least.values())
    problem = f"the stages need {needed:,} bytes and may take {budget.bytes:,}"
    more = "raise it" if budget.field == "engine.memory_bytes" else "take a device with more memory free"
    # One row is the minimum, so fewer rows are no remedy there.
    rows = "max_num_seqs" if any((memory.rows or 1) > 1 for memory in least.values()) else "max_num_batched_tokens"
    options = f"options such as max_model_len, {rows} and cache_bytes"
    apart = "place stages on other devices (<stage>.place), cut one across several (<stage>.tensor_parallel)"
    return InsufficientMemoryError(
        budget.field, problem, f"{more}, {apart}, or lower the stages' {options}:\n{table(least)}"
    )


def table(stages: Mapping[str, StageMemory]) -> str:
    """One line per stage, in bytes, under a header."""
    header = ("stage", "rows", "weights", "fixed", "working", "pages", "bytes per page", "sum")
    lines = [header, *((name, *_cells(memory)) for name, memory in stages.items())]
    return "\n".join(columns(lines, right=range(1, len(header)), indent=""))


def _cells(memory: StageMemory) -> tuple[str, ...]:
    numbers = (memory.rows, memory.weights, memory.fixed, memory.working, memory.pages, memory.page_bytes, memory.total)
    return tuple("-" if number is None else f"{number:,}" for number in numbers)
