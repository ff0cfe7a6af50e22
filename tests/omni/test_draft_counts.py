"""Counts of drafts, compared with a list of the drafts of each row and step."""

from hypothesis import given
from hypothesis import strategies as st

from omni.utils.draft_counts import DraftCounts

VERIFIED = st.integers(0, 6).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


@given(st.lists(VERIFIED), st.lists(VERIFIED), st.integers(0, 4))
def test_counts_equal_a_count_of_each_row(first: list[tuple[int, int]], then: list[tuple[int, int]], size: int):
    counts, later, rows = DraftCounts(size), DraftCounts(), [*first, *then]
    for row in first:
        counts.add(*row)
    for row in then:
        later.add(*row)
    counts.merge(later)
    most = max((drafted for drafted, _ in rows), default=0)
    at = [[accepted > place for drafted, accepted in rows if drafted > place] for place in range(most)]
    assert counts.acceptance == tuple(sum(each) / len(each) for each in at)
    lengths = [1 + accepted for drafted, accepted in rows if drafted]
    assert counts.mean_length == (sum(lengths) / len(lengths) if lengths else None)
    numbers = counts.numbers()
    assert numbers.get("drafted_steps", 0) == len(lengths)
    assert numbers.get("drafted_tokens", 0) == sum(drafted for drafted, _ in rows)
    assert numbers.get("accepted_drafts", 0) == sum(accepted for _, accepted in rows)
    assert len(numbers) == (3 + 2 * max(size, most) if max(size, most) else 0)
    assert DraftCounts.of({"tokens": 3, **numbers}).numbers() == numbers


def test_the_text_has_all_of_them():
    counts = DraftCounts(3)
    assert str(DraftCounts()) == ""
    assert str(counts) == "no drafts verified"
    for accepted in (2, 1, 0, 2):
        counts.add(2, accepted)
    assert str(counts) == "2.25 tokens per step with drafts (5 of 8 accepted, by position 75% 50%)"
