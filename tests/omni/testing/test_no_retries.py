"""A batch that fails and is run again, alone, leaves results right: whoever tests is told all the same."""

from collections.abc import Callable

import pytest
import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.payload import Payload
from omni.stage import MailboxWorker
from omni.testing import LaunchGuard, SimulatedDevice, Simulation, no_retries, planted_faults
from omni_ar.options import ArOptions
from omni_ar.run.plan import StepPlan
from omni_ar.run.runner import Runner
from omni_ar.run.step import StepContext
from omni_encoder.inputs import MediaItem
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker
from tests.support import painter, wavemaker
from tests.support.ar_driver import ArDriver
from tests.support.faults import FaultyDevice
from tests.support.frame_bench import random_codes
from tests.support.small_text import SmallText, greedy
from tests.support.stage_driver import StageDriver
from tests.support.tower import Tower

PROMPTS = [[(11 * index + 5 * place * place) % 60 for place in range(9)] for index in range(3)]
TOKENS = [4, 8, 12]
TOLD = r"batches failed and were run again, \d+ in all:\n- {}: {}: planted"


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
        driver.ask(str(index), prompt, rank=(0, index), max_tokens=TOKENS[index])
    return driver


def assert_healed(driver: ArDriver) -> None:
    for index, prompt in enumerate(PROMPTS):
        assert driver.tokens(str(index)) == greedy(SmallText(), prompt, TOKENS[index])
    assert driver.counter("retries")


@pytest.mark.usefixtures("replays_fail")
def test_an_error_of_every_replay_beside_decodes_is_healed_and_told() -> None:
    driver = under_pressure(CpuDevice())
    with (
        pytest.raises(AssertionError, match=TOLD.format(r"text, running a step in a batch of \d", "IndexError")),
        no_retries(),
    ):
        driver.run()
    assert_healed(driver)


@pytest.mark.usefixtures("replays_fail")
def test_a_simulation_tells() -> None:
    device = SimulatedDevice(3)
    driver = under_pressure(device)
    simulation = Simulation(device, driver.tick, lambda: len(driver.ends) == len(PROMPTS))
    with pytest.raises(AssertionError, match=TOLD.format("text, .*", "IndexError")), torch.inference_mode():
        simulation.run()
    assert_healed(driver)


@pytest.mark.usefixtures("replays_fail")
def test_a_launch_guard_tells() -> None:
    device = CpuDevice()
    driver = under_pressure(device)
    with pytest.raises(AssertionError, match=TOLD.format("text, .*", "IndexError")), LaunchGuard(device):
        driver.run()
    assert_healed(driver)


@pytest.mark.usefixtures("replays_fail")
def test_what_is_planted_is_not_told() -> None:
    driver = under_pressure(CpuDevice())
    with no_retries(), planted_faults(), no_retries():
        driver.run()
    assert_healed(driver)


@pytest.mark.usefixtures("replays_fail")
def test_another_error_says_it_too() -> None:
    driver = under_pressure(CpuDevice())

    def run() -> None:
        with no_retries():
            driver.run()
            raise KeyError("another")

    with pytest.raises(KeyError) as raised:
        run()
    (note,) = raised.value.__notes__
    assert note.startswith("batches failed and were run again")


def encode(device: FaultyDevice) -> MailboxWorker[object]:
    """Two pictures, of which a batch fails."""
    worker = EncoderWorker("stage", device, Tower(), EncoderOptions())
    driver = StageDriver(worker, device.stream("test"))
    device.faults.plant(("stage", "encode_batch"), 0, after=False)
    driver.open("a")
    for index in range(2):
        item = MediaItem(index=index, key=str(index), batch_key=0, length=1)
        driver.feed_host("a", Payload(item, {"x": torch.tensor([1.0 + index])}))
    driver.end("a")
    driver.settle(device)
    assert driver.ends["a"].counts == {"items": 2, "cached": 0}
    return worker


def decode(device: FaultyDevice) -> MailboxWorker[object]:
    bench = wavemaker.Bench(device, first_chunk_frames=3, chunk_frames=2)
    codes = {name: random_codes(7, seed) for seed, name in enumerate("ab")}
    bench.open(*codes)
    for name, own in codes.items():
        bench.feed_pages(name, own)
    bench.end(*codes)
    device.faults.plant(("vocoder", "reset_rows"), 0, after=False)
    bench.settle(device)
    for name, own in codes.items():
        bench.expect_whole(name, own)
    return bench.vocoder


def denoise(device: FaultyDevice) -> MailboxWorker[object]:
    bench = painter.Bench(device, first_chunk_blocks=1, chunk_blocks=2, blocks_before=1, blocks_after=1)
    codes = {name: random_codes(11, seed) for seed, name in enumerate("ab")}
    for name, own in codes.items():
        bench.speak(name, own)
    device.faults.plant(("diffusion", "begin_windows"), 0, after=False)
    bench.settle(device)
    for name, own in codes.items():
        bench.expect(name, own)
    return bench.diffusion


@pytest.mark.parametrize("play", [encode, decode, denoise])
def test_every_kind_of_stage_counts_and_tells(play: Callable[[FaultyDevice], MailboxWorker[object]]) -> None:
    """Beside autoregressive stages, of which the tests above are."""
    worker: list[MailboxWorker[object]] = []
    with pytest.raises(AssertionError, match=TOLD.format(".*", "PlantedError")), no_retries():
        worker.append(play(FaultyDevice()))
    assert worker[0].counters()["retries"] == 1
