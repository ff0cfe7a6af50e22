"""An exception raised once in a phase, on a device whose streams run late, in any order."""

import random

import pytest

from support.fault_bench import assert_named, bench, failures
from support.leaks import records


@pytest.mark.plants_faults
@pytest.mark.parametrize("stage", [pytest.param("thinker", marks=pytest.mark.slow), "talker", "code2wav"])
def test_what_was_launched_before_a_fault_may_still_run(stage: str) -> None:
    """On a device whose streams run late: what failed requests held is not reused before its readers are through."""
    late, chance, missed = bench("late"), random.Random(stage), 0

    for phase in late.places(stage):
        fault = late.device.faults.plant((stage, phase), chance.randrange(4), after=chance.random() < 0.5)
        for error in failures(late.run()):
            assert_named(error, stage, phase)
        missed += fault.left
        fault.left = False
    assert missed < len(late.places(stage)) / 2
    assert failures(late.run()) == []
    assert records()["pinned slots"] == 0
