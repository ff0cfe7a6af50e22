"""The gain of drafts in a step, compared with a list of the reports of all steps."""

import random

import pytest

from omni_ar.options import MAX_IN_FLIGHT
from omni_ar.run.draft_reports import LAG, PROBE, WINDOW, DraftReports


@pytest.mark.parametrize("prompt_steps", [0, 1, 3])
def test_a_report_counts_for_steps_that_begin_lag_later(prompt_steps: int):
    """Whatever the number of steps in flight. A step without a report decides as the one before, and those of the prompt not."""
    draw, reports = random.Random(prompt_steps), DraftReports()
    for start in (300, 0):
        reports.restart(start)
        reported: list[int] = []  # by each step
        for read in range(80):
            for in_flight in range(MAX_IN_FLIGHT):
                end = read + in_flight - LAG + 1
                counted = reported[max(end - WINDOW, prompt_steps) : max(end, 0)]
                assert reports.gain(in_flight) == (sum(counted) // len(counted) if counted else start), (
                    read,
                    in_flight,
                )
            reports.read()
            reported.append(reported[-1] if reported else start)
            if read >= prompt_steps and (read == prompt_steps or draw.random() < 0.7):
                reported[-1] = draw.choice((0, 0, 0, 100, 410, 803))
                reports.report(reported[-1])


def test_before_its_first_step_a_request_gains_nothing():
    assert [DraftReports().gain(in_flight) for in_flight in range(MAX_IN_FLIGHT)] == [0] * MAX_IN_FLIGHT


@pytest.mark.parametrize("probes", [True, False])
def test_a_drafter_that_does_not_run_is_tried_again(probes: bool):
    """After 256 steps without a gain, then after 512 further ones; for fewer steps than a report counts for."""
    reports, gains = DraftReports(), list[int]()
    reports.restart(80, probes=probes)
    for _ in range(4 * PROBE):
        gains.append(reports.gain(0))
        reports.read()
        reports.report(0)
    assert all(gains[:LAG])
    tried = [number for number, gain in enumerate(gains) if number >= LAG and gain]
    if not probes:
        assert not tried
        return
    assert tried[0] == PROBE
    assert tried[-1] == 3 * PROBE + LAG + WINDOW - 2
    assert len(tried) == 2 * (LAG + WINDOW - 1), "nothing between"
