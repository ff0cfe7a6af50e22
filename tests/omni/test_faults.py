"""An exception raised once in a phase, in a batch of one, for every phase that a stage launches: instead of it, and after it."""

import random

import pytest

from support.resources import records
from support.tiers import few
from tests.omni.fault_bench import STAGES, assert_named, bench, failures


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("stage", few(1, STAGES))
def test_a_request_that_is_alone_in_its_batch_fails_and_no_other(stage: str, after: bool) -> None:
    """Others are at other stages, or wait, or come later: their answers are transformers'."""
    alone, chance = bench("alone"), random.Random(stage)
    assert len(alone.places(stage)) > 1

    for phase in alone.places(stage):
        (error,) = failures(alone.fail_at(stage, phase, chance, after=after))
        assert_named(error, stage, phase)
    assert failures(alone.run()) == []
    assert records()["pinned slots"] == 0
