"""Counts of durations, compared with the list of them."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.utils.duration_counts import BOUNDS_US, DurationCounts

DURATIONS = st.lists(st.integers(0, 20_000_000) | st.sampled_from([1000 * bound for bound in BOUNDS_US]), min_size=1)


def counts_of(durations: list[int]) -> DurationCounts:
    counts = DurationCounts()
    for each in durations:
        counts.add(each)
    return counts


@given(DURATIONS, st.floats(0.01, 1))
def test_a_percentile_is_in_the_group_of_the_true_one(durations: list[int], share: float) -> None:
    place = share * len(durations)
    true = next(each for index, each in enumerate(sorted(durations), 1) if index >= place) / 1000
    found = counts_of(durations).percentile(share)
    assert found is not None
    group = bisect_left(BOUNDS_US, true)
    if group == len(BOUNDS_US):
        assert found == BOUNDS_US[-1]
    else:
        assert (0, *BOUNDS_US)[group] <= found <= BOUNDS_US[group]


def test_a_percentile_is_interpolated() -> None:
    assert counts_of([121_000, 122_000, 123_000, 128_000]).percentile(0.5) == 125.0
    assert DurationCounts().percentile(0.5) is None


@given(DURATIONS, DURATIONS)
def test_two_readings_give_what_happened_between_them(first: list[int], then: list[int]) -> None:
    before, after = counts_of(first).numbers("steps"), counts_of([*first, *then]).numbers("steps")
    found = DurationCounts.of("steps", after, before)
    assert found.counts == counts_of(then).counts
    assert found.nanoseconds == pytest.approx(sum(then), abs=2000)
    assert 0 not in {count for name, count in after.items() if name != "steps_us"}
    assert after["steps_us"] == sum([*first, *then]) // 1000


def test_a_group_has_its_upper_bound_in_its_name() -> None:
    numbers = counts_of([140_001, 150_000, 150_001, 10_000_001]).numbers("took")
    assert numbers == {"took_us": 10_440, "took_us_150": 2, "took_us_160": 1, "took_us_more": 1}
