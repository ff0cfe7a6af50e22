"""The number of rows that follows from memory: the largest that fits, by brute force over stages whose memory is a formula."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import measure_stages
from omni.engine.memory import Budget
from omni.engine.rows import MemoryPlan, divide_again, divide_memory
from omni.errors import ConfigError
from omni.stage import (
    MOST_CPU_ROWS,
    MOST_ROWS,
    ROW_NUMBERS,
    Footprint,
    InsufficientMemoryError,
    LoadedStage,
    PlainStage,
    RowCost,
    RowStage,
    StageWorker,
    most_rows,
)
from tests.support.fake_graph import FakeWorker

FULL = 16
"""Pages of a request of full length."""


@dataclass
class Rows:
    """A stage of rows. fitting: the most rows for which the device can allocate and run steps."""

    weights: int = 0
    row_bytes: int = 0
    working: int = 0
    working_row: int = 0
    page_bytes: int = 0
    row_pages: int = 2
    caches: bool = True
    chosen_rows: int | None = None
    chosen_pages: int | None = None
    fitting: int = 10**9
    rows: int = 0
    measured: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.set_rows(self.chosen_rows or 1)

    def set_rows(self, rows: int) -> None:
        self.rows = rows
        self.footprint = Footprint(
            weights=self.weights,
            fixed=rows * self.row_bytes,
            page_bytes=self.page_bytes,
            fewest_pages=FULL,
            most_pages=rows * FULL,
            chosen_pages=self.chosen_pages,
            rows=rows,
            caches=self.caches,
        )

    def count_row(self) -> RowCost:
        return RowCost(bytes=self.row_bytes, pages=self.row_pages)

    def measure(self) -> int:
        self.measured.append(self.rows)
        if self.rows > self.fitting:
            raise torch.OutOfMemoryError("out of memory")
        return self.working + self.working_row * self.rows

    def start(self, pages: int) -> StageWorker:
        return FakeWorker()

    def needed(self, rows: int) -> int:
        pages = max(FULL, rows * self.row_pages) if self.chosen_pages is None else self.chosen_pages
        fixed = self.weights + rows * self.row_bytes + pages * self.page_bytes
        return fixed + self.working + self.working_row * rows


def divided(
    stages: Mapping[str, Rows], memory: int | None, device: Device | None = None, most: int = MOST_ROWS
) -> MemoryPlan:
    budget = None if memory is None else Budget(memory, "engine.memory_bytes")
    return divide_memory(stages, device or CpuDevice(), budget, measure_stages, most)


_bytes = st.integers(0, 10**6)
_stages = st.lists(
    st.builds(
        Rows,
        weights=_bytes,
        row_bytes=_bytes,
        working=_bytes,
        working_row=_bytes,
        page_bytes=st.integers(0, 10**5),
        row_pages=st.integers(0, 4),
        caches=st.booleans(),
        chosen_pages=st.none() | st.integers(1, 300),
    ),
    min_size=1,
    max_size=3,
)


@given(stages=_stages, extra=st.integers(0, 5 * 10**8))
def test_the_largest_number_that_fits_is_found_and_is_that_of_all_stages(stages: list[Rows], extra: int) -> None:
    named = {str(index): stage for index, stage in enumerate(stages)}
    memory = sum(stage.needed(1) for stage in stages) + extra
    division = divided(named, memory)
    (rows,) = {stage.rows for stage in stages}
    assert rows == max(number for number in ROW_NUMBERS if sum(stage.needed(number) for stage in stages) <= memory)
    assert sum(each.total for each in division.memory.values()) <= memory
    assert {each.rows for each in division.memory.values()} == {rows}
    assert all(division.memory[name].pages == stage.chosen_pages for name, stage in named.items() if stage.chosen_pages)
    # The first estimate has no working memory, the second assumes that all of it grows with the rows.
    assert all(len(stage.measured) <= 3 for stage in stages)


@given(stages=_stages, short=st.integers(1, 10**6))
def test_less_than_one_row_is_refused(stages: list[Rows], short: int) -> None:
    memory = sum(stage.needed(1) for stage in stages) - short
    with pytest.raises(InsufficientMemoryError, match=r"^engine\.memory_bytes: the stages need ") as error:
        divided({str(index): stage for index, stage in enumerate(stages)}, memory)
    assert "max_num_seqs" not in error.value.remedy
    assert {line.split()[1] for line in str(error.value).splitlines()[2:]} == {"1"}


def test_a_stage_that_cannot_fit_is_refused_without_measuring() -> None:
    stage = Rows(weights=1000)
    with pytest.raises(InsufficientMemoryError):
        divided({"it": stage}, 999)
    assert not stage.measured


def test_the_pages_of_typical_requests_leave_the_rest_to_the_prefix_cache() -> None:
    stage = Rows(row_bytes=5, page_bytes=10, row_pages=2)
    # A row takes 25 bytes, 1,200 of 48 rows; 64 do not fit.
    division = divided({"it": stage}, 1599)
    assert (stage.rows, division.memory["it"].pages) == (48, (1599 - 48 * 5) // 10)
    assert divided({"it": stage}, 1600).memory["it"].rows == 64


def test_stages_that_have_many_rows_can_be_divided_again_for_few() -> None:
    stage = Rows(row_bytes=100, page_bytes=1, row_pages=FULL)
    assert divided({"it": stage}, 10**9).memory["it"].rows == MOST_ROWS
    assert divided({"it": stage}, stage.needed(2)).memory["it"].rows == 2


@pytest.mark.parametrize(("caches", "pages"), [(True, 64 + 15), (False, 64)])
def test_full_requests_in_all_rows_leave_the_rest_to_the_prefix_cache(caches: bool, pages: int) -> None:
    stage = Rows(page_bytes=10, row_pages=FULL, caches=caches)
    division = divided({"it": stage}, 64 * 10 + 159)
    assert (stage.rows, division.memory["it"].pages) == (4, pages)


def test_the_prefix_cache_has_at_most_the_pages_of_the_maximum_of_rows() -> None:
    stage = Rows(row_bytes=1000, page_bytes=1, row_pages=1)
    assert divided({"it": stage}, 127_000).memory["it"].pages == MOST_ROWS * FULL
    assert stage.rows == 96


@pytest.mark.parametrize("beside", [{}, {"derived": Rows()}])
@pytest.mark.parametrize(("caches", "pages"), [(True, 100 * FULL), (False, 4 * FULL)])
def test_the_prefix_cache_gets_the_rest_also_beside_rows_of_the_user(
    caches: bool, pages: int, beside: Mapping[str, Rows]
) -> None:
    stage = Rows(page_bytes=10, chosen_rows=4, caches=caches)
    stages = {"it": stage, **beside}
    plan = divided(stages, 10 * 100 * FULL)
    assert (stage.rows, plan.memory["it"].pages) == (4, pages)
    again = divide_again(stages, Budget(10 * 100 * FULL, ""), MOST_ROWS, plan, {"it": 4} | dict.fromkeys(beside, 1))
    assert again.memory["it"].pages == pages
    assert divided({"it": Rows(page_bytes=10, chosen_rows=200)}, 10**6).memory["it"].pages == 200 * FULL
    assert divided({"it": Rows(page_bytes=10, chosen_rows=4, chosen_pages=70)}, 10**6).memory["it"].pages == 70


def test_numbers_of_the_user_are_kept_and_counted() -> None:
    chosen, derived = Rows(row_bytes=100, chosen_rows=7), Rows(row_bytes=10)
    divided({"chosen": chosen, "derived": derived}, 700 + 330)
    assert (chosen.rows, derived.rows) == (7, 32)
    assert len(chosen.measured) == 1
    only = Rows(row_bytes=100, chosen_rows=200)
    assert divided({"only": only}, 10**6).derived is None
    assert only.rows == 200


def test_stages_without_rows_are_measured_once() -> None:
    class Plain(PlainStage):
        def measure(self) -> int:
            found.append("plain")
            return 100

    found: list[str] = []
    stage = Rows(working_row=10)
    stages: dict[str, LoadedStage] = {"plain": Plain(FakeWorker()), "it": stage}
    division = divide_memory(stages, CpuDevice(), Budget(500, "engine.memory_bytes"), measure_stages, MOST_ROWS)
    assert found == ["plain"]
    assert stage.measured == [MOST_ROWS, 32]
    assert (division.memory["plain"].working, division.memory["plain"].rows) == (100, None)


@pytest.mark.parametrize(("fitting", "rows"), [(127, 64), (63, 32), (1, 1)])
def test_rows_that_exceed_the_device_in_a_step_are_halved(fitting: int, rows: int) -> None:
    stage = Rows(fitting=fitting)
    divided({"it": stage}, 10**9)
    assert stage.rows == rows
    assert stage.measured == [number for number in (128, 64, 32, 16, 8, 4, 2, 1) if number >= rows]


def test_one_row_that_exceeds_the_device_and_other_errors_are_reported() -> None:
    with pytest.raises(InsufficientMemoryError, match="cpu has insufficient memory for the largest step of stage 'it'"):
        divided({"it": Rows(fitting=0)}, 10**9)

    class Broken(Rows):
        def measure(self) -> int:
            raise ConfigError("it.option", "is wrong", "correct it")

    with pytest.raises(ConfigError, match=r"it\.option"):
        divided({"it": Broken()}, 10**9)


def test_memory_that_stays_after_a_measurement_counts_for_later_ones() -> None:
    class Card(CpuDevice):
        def free_memory(self) -> int:
            return 10**6 - (100 if stage.measured else 0)

    class Compiled(Rows):
        def measure(self) -> int:
            first = not self.measured
            return super().measure() + (100 if first else 0)

    stage = Compiled(working_row=10)
    division = divided({"it": stage}, 500, Card())
    assert stage.measured == [128, 32]
    assert division.memory["it"].working == 100 + 320


def test_unbounded_memory_gives_the_maximum_and_measures_nothing() -> None:
    stage, chosen = Rows(page_bytes=10), Rows(page_bytes=10, chosen_rows=200)
    division = divided({"it": stage, "chosen": chosen}, None, most=MOST_CPU_ROWS)
    assert (stage.rows, chosen.rows) == (MOST_CPU_ROWS, 200)
    assert division.memory["it"].pages == MOST_CPU_ROWS * FULL // 2
    assert division.memory["chosen"].pages == 200 * FULL
    assert not stage.measured


@pytest.mark.parametrize(("device", "most"), [("cpu", MOST_CPU_ROWS), ("cuda:1", MOST_ROWS)])
def test_the_maximum_is_that_of_the_device(device: str, most: int) -> None:
    assert most_rows(torch.device(device)) == most
    stage = Rows()
    divided({"it": stage}, 10**9, most=most)
    assert stage.measured == [most]


def test_the_fake_keeps_the_contract() -> None:
    assert isinstance(Rows(), RowStage)


# Again, with the rows that other ranks of a stage have.


@given(_stages, st.integers(0, 10**7), st.sampled_from(ROW_NUMBERS))
def test_fewer_rows_of_one_stage_are_those_of_all_and_fit(stages: list[Rows], extra: int, fewer: int) -> None:
    named = {str(number): stage for number, stage in enumerate(stages)}
    budget = Budget(sum(stage.needed(1) for stage in stages) + extra, "engine.memory_bytes")
    first = divided(named, budget.bytes)
    assert first.derived is not None
    before, measured = first.derived.rows, [len(stage.measured) for stage in stages]
    rows = min(fewer, before)
    again = divide_again(named, budget, MOST_ROWS, first, {"0": rows})
    assert again.derived is not None
    assert {stage.rows for stage in stages} == {memory.rows for memory in again.memory.values()} == {rows}
    assert sum(memory.total for memory in again.memory.values()) <= budget.bytes
    assert [len(stage.measured) for stage in stages] == measured
    for name, stage in named.items():
        most = (MOST_ROWS if stage.caches else rows) * FULL
        assert again.memory[name].pages <= (most if stage.chosen_pages is None else stage.chosen_pages)
        assert again.memory[name].pages >= (FULL if stage.chosen_pages is None else stage.chosen_pages)


def test_memory_of_rows_that_others_lack_goes_to_the_prefix_cache() -> None:
    stage = Rows(weights=100, row_bytes=50, page_bytes=7, row_pages=4)
    budget = Budget(stage.needed(64), "engine.memory_bytes")
    whole = divided({"it": stage}, budget.bytes)
    again = divide_again({"it": stage}, budget, MOST_ROWS, whole, {"it": 16})
    assert (whole.memory["it"].rows, whole.memory["it"].pages) == (64, 64 * 4)
    assert (again.memory["it"].rows, again.memory["it"].pages) == (16, 64 * 4 + 48 * 50 // 7)


def test_numbers_of_the_user_stay_when_it_is_divided_again() -> None:
    chosen, derived = Rows(chosen_rows=100, page_bytes=1), Rows(page_bytes=1)
    stages = {"chosen": chosen, "derived": derived}
    budget = Budget(10**6, "engine.memory_bytes")
    divide_again(stages, budget, MOST_ROWS, divided(stages, 10**6), {"chosen": 100, "derived": 8})
    assert (chosen.rows, derived.rows) == (100, 8)


def test_unbounded_memory_is_divided_again_for_half_of_the_rows_need() -> None:
    stage = Rows(page_bytes=1)
    again = divide_again({"it": stage}, None, MOST_ROWS, divided({"it": stage}, None), {"it": 8})
    assert (stage.rows, again.memory["it"].rows, again.memory["it"].pages) == (8, 8, 4 * FULL)
