"""A batch that fails and is run again, alone, leaves results right: tests report it all the same."""

from contextlib import AbstractContextManager

import pytest
import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.testing import LaunchGuard, SimulatedDevice, Simulation, no_retries, planted_faults
from omni_ar.options import ArOptions
from omni_ar.run.plan import StepPlan
from omni_ar.run.runner import Runner
from omni_ar.run.step import StepContext
from tests.support.ar_driver import ArDriver
from tests.support.fake_graph import FakeGraph
from tests.support.small_text import SmallText, greedy

PROMPTS = [[(11 * index + 5 * place * place) % 60 for place in range(9)] for index in range(3)]
TOKENS = [4, 8, 12]


@pytest.fixture
def replays_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours: every batch raises in which a preempted request runs its tokens again beside rows that decode."""
    real = Runner.execute_model

    def execute_model(self: Runner, plan: StepPlan) -> StepContext:
        if plan.decodes and plan.replays:
            raise IndexError("planted")
        return real(self, plan)

    monkeypatch.setattr(Runner, "execute_model", execute_model)


def under_pressure(device: Device) -> ArDriver:
    """Requests that have too few blocks: the last is preempted, and runs again when the first is over, beside the second."""
    driver = ArDriver(SmallText(), device, ArOptions(max_num_seqs=3, block_size=2, num_blocks=16, prefix_cache=False))
    for index, prompt in enumerate(PROMPTS):
        driver.ask(str(index), prompt, order=(0, index), max_tokens=TOKENS[index])
    return driver


def assert_healed(driver: ArDriver) -> None:
    for index, prompt in enumerate(PROMPTS):
        assert driver.tokens(str(index)) == greedy(SmallText(), prompt, TOKENS[index])
    assert driver.counter("retries")


def reported(batch: str) -> AbstractContextManager[object]:
    problem = rf"batches failed and were run again, \d+ in all:\n- {batch}: IndexError: planted"
    return pytest.raises(AssertionError, match=problem)


@pytest.mark.usefixtures("replays_fail")
@pytest.mark.parametrize("guard", [no_retries, LaunchGuard, Simulation])
def test_an_error_of_every_replay_beside_decodes_is_healed_and_reported(guard: object) -> None:
    """The results are right; whoever looks for retries raises at its end."""
    device = SimulatedDevice(3) if guard is Simulation else CpuDevice()
    driver = under_pressure(device)
    with reported(r"text, running a step in a batch of \d"), torch.inference_mode():
        if isinstance(device, SimulatedDevice):
            Simulation(device, driver.tick, lambda: len(driver.ends) == len(PROMPTS)).run()
        else:
            with LaunchGuard(device) if guard is LaunchGuard else no_retries():
                driver.run()
    assert_healed(driver)


@pytest.mark.usefixtures("replays_fail")
def test_planted_faults_are_not_reported() -> None:
    driver = under_pressure(CpuDevice())
    with no_retries(), planted_faults(), no_retries():
        driver.run()
    assert_healed(driver)


@pytest.mark.usefixtures("replays_fail")
def test_an_error_of_the_block_notes_the_repeated_batch() -> None:
    driver = under_pressure(CpuDevice())

    def run() -> None:
        with no_retries():
            driver.run()
            raise KeyError("another")

    with pytest.raises(KeyError) as raised:
        run()
    (note,) = raised.value.__notes__
    assert note.startswith("batches failed and were run again")


def test_a_stage_that_is_closed_is_found_too() -> None:
    graph = FakeGraph()
    graph.speaker.broken = RuntimeError("an unknown state")
    with (
        pytest.raises(AssertionError, match="speaker, the stage is closed: RuntimeError: an unknown state"),
        no_retries(),
    ):
        graph.settle()
    with no_retries(), planted_faults():
        FakeGraph().settle()
