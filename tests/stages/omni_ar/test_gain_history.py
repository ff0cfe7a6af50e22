"""The gain of drafts in a step, compared with a list of the reports of all steps."""

import random

import pytest

from omni_ar.options import MAX_IN_FLIGHT
from omni_ar.run.gain_history import LAG, PROBE, WINDOW, GainHistory


@pytest.mark.parametrize("prompt_steps", [0, 1, 3])
def test_a_report_counts_for_steps_that_begin_lag_later(prompt_steps: int):
    """Whatever the number of steps in flight. A step without a report decides as the one before, and those of the prompt not."""
    draw, reports = random.Random(prompt_steps), GainHistory()
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
                reports.report(reported[-1], verifies=True)


def test_before_its_first_step_a_request_gains_nothing():
    assert [GainHistory().gain(in_flight) for in_flight in range(MAX_IN_FLIGHT)] == [0] * MAX_IN_FLIGHT


@pytest.mark.parametrize("in_flight", [0, 3, MAX_IN_FLIGHT - 1])
def test_a_drafter_that_does_not_run_is_tried_again(in_flight: int):
    """After 256 steps that verify no drafts, then after 512 further ones: in the same steps with any number in flight."""
    reports = GainHistory()
    reports.restart(80, probe=PROBE)
    planned = [reports.gain(number) for number in range(in_flight)]
    for _ in range(5 * PROBE):
        planned.append(reports.gain(in_flight))
        reports.read()
        reports.report(0, verifies=False)
    tried = [number for number, gain in enumerate(planned) if number >= LAG and gain]
    expected = [*range(PROBE - 1 + LAG, PROBE - 1 + 2 * LAG + WINDOW - 1)]
    expected += [number + 2 * PROBE for number in expected]
    assert tried == expected


def test_a_drafter_that_always_runs_is_not_tried_again():
    reports = GainHistory()
    reports.restart(80)
    for number in range(2 * PROBE):
        assert bool(reports.gain(0)) == (number < LAG)
        reports.read()
        reports.report(0, verifies=False)


def test_a_request_that_starts_again_is_tried_after_as_many_steps():
    """A preempted request has the reports of a new one."""
    reports = GainHistory()
    for _ in range(2):
        reports.restart(80, probe=PROBE)
        for number in range(PROBE + LAG):
            assert bool(reports.gain(0)) == (number < LAG or number == PROBE - 1 + LAG), number
            reports.read()
            reports.report(0, verifies=False)
