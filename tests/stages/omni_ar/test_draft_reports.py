"""The number of drafts that a step is worth, compared with a list of the decisions for each step."""

import random

import pytest

from omni_ar.run.draft_reports import LEAST_LAG, DraftReports


@pytest.mark.parametrize("lag", [1, 2, 3, 5])
def test_the_report_of_a_step_decides_about_the_step_lag_later(lag: int):
    """A step without a report decides as the one before; more steps in flight than that, as the last decision that is known."""
    draw, reports = random.Random(lag), DraftReports()
    for start in (3, 0):
        reports.restart(start, lag)
        decided = [start] * lag  # for each step
        for read in range(40):
            for in_flight in range(2 * lag + 2):
                known = min(read + in_flight, read + lag - 1)
                assert reports.wanted(in_flight) == decided[known], (read, in_flight)
            reports.read()
            decided.append(decided[-1])
            if draw.random() < 0.7:
                decided[-1] = draw.randrange(9)
                reports.report(decided[-1])


def test_before_its_first_step_a_request_is_worth_no_drafts():
    assert [DraftReports().wanted(in_flight) for in_flight in range(LEAST_LAG + 2)] == [0] * (LEAST_LAG + 2)
