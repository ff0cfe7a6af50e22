"""The number of drafts that a step is worth, compared with a list of the reports of all steps."""

import random

import pytest

from omni_ar.options import MAX_IN_FLIGHT
from omni_ar.run.draft_reports import LAG, WINDOW, DraftReports


@pytest.mark.parametrize("prompt_steps", [0, 1, 3])
def test_a_report_decides_about_steps_that_begin_lag_later(prompt_steps: int):
    """Whatever the number of steps in flight. A step without a report decides as the one before, and those of the prompt not."""
    draw, reports = random.Random(prompt_steps), DraftReports()
    for start in (3, 0):
        reports.restart(start)
        reported: list[int] = []  # by each step
        for read in range(80):
            for in_flight in range(MAX_IN_FLIGHT):
                end = read + in_flight - LAG + 1
                decide = reported[max(end - WINDOW, prompt_steps) : max(end, 0)]
                assert reports.wanted(in_flight) == max(decide, default=start), (read, in_flight)
            reports.read()
            reported.append(reported[-1] if reported else start)
            if read >= prompt_steps and (read == prompt_steps or draw.random() < 0.7):
                reported[-1] = draw.choice((0, 0, 0, 1, 4, 8))
                reports.report(reported[-1])


def test_before_its_first_step_a_request_is_worth_no_drafts():
    assert [DraftReports().wanted(in_flight) for in_flight in range(MAX_IN_FLIGHT)] == [0] * MAX_IN_FLIGHT
