"""An exception raised once in a phase, on a device whose streams run late, in any order."""

import random

import pytest

from support.resources import records
from support.tiers import few
from tests.omni.fault_bench import STAGES, assert_named, bench, failures


@pytest.mark.plants_faults
@pytest.mark.parametrize("stage", few(1, STAGES))
def test_what_was_launched_before_a_fault_may_still_run(stage: str) -> None:
    """On a device whose streams run late: what failed requests held is not reused before its readers are through."""
    late, chance, missed = bench("late"), random.Random(stage), 0

    for phase in late.places(stage):
        number = chance.randrange(min(4, late.launched[stage, phase]))
        fault = late.device.faults.plant((stage, phase), number, after=chance.random() < 0.5)
        for error in failures(late.run()):
            assert_named(error, stage, phase)
        missed += fault.left
        fault.left = False
    assert missed <= len(late.places(stage)) / 2
    assert failures(late.run()) == []
    late.device.assert_no_races()
    assert records()["pinned slots"] == 0
