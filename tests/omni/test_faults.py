"""An exception raised once in a phase: in batches of one, of several, and on a device whose streams run late."""

import random
from collections.abc import Mapping

import pytest

from omni.testing.faults import FaultyStirredDevice, PlantedError
from omni_ar.run.plan import StepPlan
from omni_ar.run.runner import Runner
from omni_ar.run.step import StepContext
from tests.omni.fault_bench import AR, CHATS, STAGES, FaultBench, assert_named, bench, failures
from tests.support.resources import records
from tests.support.tiers import few

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("after", few(1, [False, True]), ids=["instead", "after"])
@pytest.mark.parametrize("stage", few(1, STAGES))
def test_a_request_that_is_alone_in_its_batch_fails_and_no_other(stage: str, after: bool) -> None:
    """Others are at other stages, or wait, or arrive later: their answers are those of transformers."""
    alone, chance = bench("alone"), random.Random(stage)
    assert len(alone.places(stage)) > 1

    for phase in alone.places(stage):
        (error,) = failures(alone.fail_at(stage, phase, chance, after=after))
        assert_named(error, stage, phase)
    assert failures(alone.run()) == []
    assert records()["pinned slots"] == 0


RARE = {
    ("thinker", "extend_tables"),
    ("talker", "extend_tables"),
    ("talker", "gather_rows"),
    ("talker", "restore_frames"),
}
"""What only pressure provokes."""

after_or_instead = pytest.mark.parametrize("after", few(1, [True, False]), ids=["after", "instead"])


def retries(engine: FaultBench) -> int:
    return sum(engine.engine.engine.counters()[stage]["retries"] for stage in AR)


def test_rare_phases_are_launched() -> None:
    assert bench("together").launched.keys() >= RARE


@pytest.mark.plants_faults
@after_or_instead
@pytest.mark.parametrize("stage", few(1, STAGES))
def test_of_a_batch_only_the_request_with_the_fault_fails(stage: str, after: bool) -> None:
    """A vocoder's chunk cannot be decoded again: of its batch, all fail. What is launched before it is run again."""
    together, chance = bench("together"), random.Random(stage)

    for phase in together.places(stage):
        before = retries(together)
        errors = failures(together.fail_at(stage, phase, chance, after=after))
        for error in errors:
            assert_named(error, stage, phase)
        if stage == "code2wav":
            assert (phase != "reset_rows") <= len(errors) <= 2
        elif stage in AR:
            assert len(errors) + retries(together) - before == 1, phase
        else:
            assert len(errors) <= 1
    assert failures(together.run()) == []
    assert records()["pinned slots"] == 0


@pytest.mark.mutation
@pytest.mark.plants_faults
@pytest.mark.parametrize("stage", AR)
def test_a_step_that_failed_leaves_nothing_wrong_in_the_prefix_cache(stage: str) -> None:
    """Each run finds the state after the one before, in which a step failed."""
    cached = bench("cached")

    for phase in cached.places(stage):
        fault = cached.device.faults.plant((stage, phase), 0, after=True)
        assert len(failures(cached.run())) <= 1
        assert not fault.left or (stage, phase) in RARE
        fault.left = False
    assert failures(cached.run()) == []
    assert cached.engine.engine.counters()[stage]["cached_tokens"] > 0


@pytest.mark.plants_faults
@pytest.mark.parametrize("stage", few(1, AR))
@pytest.mark.parametrize("method", ["execute_model", "sample_tokens"])
@pytest.mark.parametrize("victim", few(1, range(3)))
def test_a_fault_that_comes_with_one_request_fails_that_one(
    stage: str, method: str, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its third token on, every step that it is part of raises."""
    together = bench("together")
    requests = [together.engine.request(chat) for chat in CHATS]
    name, before, real = requests[victim].id, retries(together), getattr(Runner, method)

    def spoilt(self: Runner, step: StepPlan | StepContext) -> object:
        if self.stream.name == stage and _outputs(step).get(name, 0) >= 2:
            raise PlantedError("planted")
        return real(self, step)

    monkeypatch.setattr(Runner, method, spoilt)
    results = together.engine.run_requests(requests, [0, 0, 0, 1])

    (error,) = failures(results)
    assert results[victim].error is error
    assert str(error).startswith(f"stage '{stage}' failed while running a step: PlantedError: planted ({__file__}:")
    assert retries(together) > before or stage == "talker"


def _outputs(step: StepPlan | StepContext) -> Mapping[str, int]:
    """How many tokens each sampled request has."""
    requests = step.sampled if isinstance(step, StepPlan) else [row.request for row in step.requests.rows]
    return {request.id: len(request.outputs) for request in requests}


@pytest.mark.plants_faults
@pytest.mark.parametrize("stage", few(0, STAGES))
def test_memory_of_failed_requests_waits_for_launched_readers(stage: str) -> None:
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
    assert isinstance(late.device, FaultyStirredDevice)
    late.device.assert_no_races()
    assert records()["pinned slots"] == 0
