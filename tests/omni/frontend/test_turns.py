"""Whose turn a token belongs to."""

import numpy as np

from omni.frontend.turns import in_turns_of, last_turn_of

START, USER, ANSWER = 9, 1, 2


def test_turns_by_role() -> None:
    ids = np.array([5, START, USER, 5, 6, START, ANSWER, USER, START, USER, START, ANSWER])
    assert np.flatnonzero(in_turns_of(USER, ids, START)).tolist() == [1, 2, 3, 4, 8, 9]
    assert np.flatnonzero(in_turns_of(ANSWER, ids, START)).tolist() == [5, 6, 7, 10, 11]
    assert (last_turn_of(USER, ids, START), last_turn_of(ANSWER, ids, START)) == (8, 10)


def test_a_turn_that_only_begins_has_no_role() -> None:
    assert not in_turns_of(USER, np.array([START, ANSWER, USER, START]), START).any()
    assert last_turn_of(ANSWER, np.array([START, ANSWER, USER, START]), START) == 0
