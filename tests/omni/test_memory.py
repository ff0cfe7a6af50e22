"""The division of a device's memory among stages."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.engine.memory import Budget, StageMemory, budget_of, divide, table
from omni.errors import ConfigError
from omni.stage import Footprint

MIB = 1024 * 1024
_sizes = st.integers(0, 10**12)
Case = tuple[dict[str, Footprint], dict[str, int], int, dict[str, int]]
"""Footprints, working memory, the smallest budget that is enough, and pages of typical requests."""


@st.composite
def _footprints(draw: st.DrawFn) -> dict[str, Footprint]:
    footprints = {}
    for name in draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True)):
        fewest, page_bytes = draw(st.integers(0, 2000)), draw(st.integers(0, 10**7))
        most = fewest + draw(st.integers(0, 100_000))
        footprints[name] = Footprint(
            weights=draw(_sizes),
            fixed=draw(_sizes),
            page_bytes=page_bytes,
            fewest_pages=fewest if page_bytes else 0,
            most_pages=most if page_bytes else 0,
            chosen_pages=draw(st.none() | st.integers(1, 5000)) if page_bytes else None,
        )
    return footprints


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    footprints = draw(_footprints())
    working = {name: draw(_sizes) for name in footprints}
    least = sum(f.weights + f.fixed + working[name] + f.page_bytes * _least(f) for name, f in footprints.items())
    typical = {name: draw(st.integers(0, 50_000)) for name in footprints if draw(st.booleans())}
    return footprints, working, least, typical


def _least(footprint: Footprint) -> int:
    return footprint.fewest_pages if footprint.chosen_pages is None else footprint.chosen_pages


def _total(memory: dict[str, StageMemory]) -> int:
    """By the book, not by `StageMemory.total`."""
    return sum(m.weights + m.fixed + (m.working or 0) + m.pages * m.page_bytes for m in memory.values())


@given(case=_cases(), extra=_sizes)
def test_pages_stay_within_bounds_and_fill_the_budget(case: Case, extra: int) -> None:
    footprints, working, least, typical = case
    memory = divide(footprints, working, Budget(least + extra, "engine.memory_bytes"), typical)
    assert _total(memory) <= least + extra
    assert sum(m.total for m in memory.values()) == _total(memory)
    for name, footprint in footprints.items():
        assert memory[name].working == working[name]
        if footprint.chosen_pages is not None:
            assert memory[name].pages == footprint.chosen_pages
        else:
            assert footprint.fewest_pages <= memory[name].pages <= footprint.most_pages
    growing = {name: f for name, f in footprints.items() if f.chosen_pages is None}
    full = all(memory[name].pages == f.most_pages for name, f in growing.items())
    assert full or least + extra - _total(memory) < sum(f.page_bytes for f in growing.values())


@given(case=_cases(), extra=_sizes, more=_sizes)
def test_a_larger_budget_takes_no_page_from_anyone(case: Case, extra: int, more: int) -> None:
    footprints, working, least, typical = case
    small = divide(footprints, working, Budget(least + extra, "engine.memory_bytes"), typical)
    large = divide(footprints, working, Budget(least + extra + more, "engine.memory_bytes"), typical)
    assert all(small[name].pages <= large[name].pages for name in footprints)


@given(case=_cases(), short=st.integers(1, 10**12))
def test_a_budget_below_the_fewest_pages_is_refused(case: Case, short: int) -> None:
    footprints, working, least, typical = case
    with pytest.raises(ConfigError):
        divide(footprints, working, Budget(least - short, "engine.memory_bytes"), typical)


def test_stages_share_in_proportion_to_their_remaining_need() -> None:
    footprints = {
        "thinker": Footprint(weights=1000, page_bytes=10, fewest_pages=10, most_pages=110),
        "talker": Footprint(fixed=500, page_bytes=10, fewest_pages=10, most_pages=310),
        "tower": Footprint(weights=300),
    }
    memory = divide(footprints, {"thinker": 200, "talker": 0, "tower": 100}, Budget(4300, "engine.memory_bytes"))
    # 4300 - 1000 - 500 - 300 - 300 working - 200 fewest = 2000: 200 pages for 100 and 300 more that could be used.
    assert {name: m.pages for name, m in memory.items()} == {"thinker": 10 + 50, "talker": 10 + 150, "tower": 0}


@pytest.mark.parametrize(
    ("budget", "pages"),
    [
        pytest.param(200, (10, 10), id="the fewest"),
        pytest.param(1000, (10, 90), id="part of the typical ones"),
        pytest.param(2200, (10, 210), id="all typical ones"),
        pytest.param(4200, (10 + 50, 210 + 150), id="and half of the rest"),
    ],
)
def test_stages_first_get_the_pages_of_typical_requests(budget: int, pages: tuple[int, int]) -> None:
    """The thinker's cache takes no page that a row of the talker needs."""
    footprints = {
        "thinker": Footprint(page_bytes=10, fewest_pages=10, most_pages=110, caches=True),
        "talker": Footprint(page_bytes=10, fewest_pages=10, most_pages=510),
    }
    memory = divide(footprints, {}, Budget(budget, "engine.memory_bytes"), {"talker": 210})
    assert tuple(m.pages for m in memory.values()) == pages


def test_without_a_budget_a_stage_gets_its_maximum_or_its_chosen_size() -> None:
    footprints = {
        "thinker": Footprint(page_bytes=10, fewest_pages=1, most_pages=7),
        "talker": Footprint(page_bytes=10, fewest_pages=1, most_pages=7, chosen_pages=3),
    }
    memory = divide(footprints, {}, None)
    assert {name: (m.pages, m.working) for name, m in memory.items()} == {"thinker": (7, None), "talker": (3, None)}


def test_the_refusal_names_every_stage_and_its_numbers() -> None:
    footprints = {
        "thinker": Footprint(weights=60_000_000, fixed=1000, page_bytes=2000, fewest_pages=30, most_pages=90),
        "tower": Footprint(weights=5_000_000),
    }
    footprints["thinker"] = replace(footprints["thinker"], rows=16)
    with pytest.raises(ConfigError) as error:
        divide(footprints, {"thinker": 4000, "tower": 1}, Budget(64_000_000, "engine.memory_bytes"))
    assert error.value.field == "engine.memory_bytes"
    assert "65,065,001" in error.value.problem
    assert "64,000,000" in error.value.problem
    lines = str(error.value).splitlines()
    assert lines[2].split() == ["thinker", "16", "60,000,000", "1,000", "4,000", "30", "2,000", "60,065,000"]
    assert lines[3].split() == ["tower", "-", "5,000,000", "0", "1", "0", "0", "5,000,001"]
    assert len({len(line) for line in lines[1:4]}) == 1
    assert "options such as max_model_len, max_num_seqs and cache_bytes" in error.value.remedy
    footprints["thinker"] = replace(footprints["thinker"], rows=1)
    with pytest.raises(ConfigError, match="options such as max_model_len, max_num_batched_tokens and cache_bytes"):
        divide(footprints, {}, Budget(64_000_000, "engine.memory_bytes"))


def test_the_budget_is_memory_bytes_or_most_of_the_free_memory() -> None:
    assert budget_of(None, None, "cpu") is None
    assert budget_of(1000, None, "cpu") == Budget(1000, "engine.memory_bytes")
    assert budget_of(1000, 1000, "cuda:0") == Budget(1000, "engine.memory_bytes")
    assert budget_of(None, 1024 * MIB, "cuda:0") == Budget(768 * MIB, "engine.device")
    assert budget_of(None, 100_000 * MIB, "cuda:0") == Budget(98_000 * MIB, "engine.device")
    with pytest.raises(ConfigError, match=r"engine.memory_bytes: 1,001 are more than the 1,000 free on cuda:0"):
        budget_of(1001, 1000, "cuda:0")


def test_the_table_of_memory_has_names_left_and_numbers_right() -> None:
    stages = {
        name: StageMemory(weights=weights, fixed=0, working=None, page_bytes=2, pages=3)
        for name, weights in (("a", 1000), ("longer", 5))
    }
    assert table(stages).splitlines() == [
        "stage   rows  weights  fixed  working  pages  bytes per page    sum",
        "a          -    1,000      0        -      3               2  1,006",
        "longer     -        5      0        -      3               2     11",
    ]
