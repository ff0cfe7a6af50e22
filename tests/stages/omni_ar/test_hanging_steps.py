"""A step of a cut stage that hangs on its device ends the engine of its rank, without a time limit of the device."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from omni.device import CpuDevice
from omni.errors import LostRankError
from omni.parallel import PipelineRank, RankLayout, Ranks, SilentCommunicator
from omni.stage import StageWorker
from omni.testing.ranks import thread_ranks
from omni_ar.options import ArOptions
from omni_ar.run.follower import FollowerWorker
from omni_ar.run.pipeline import PendingTokens
from tests.support.ar_driver import ArDriver, small_runner
from tests.support.deep_models import in_range
from tests.support.devices import ClockedCpu, HungDevice
from tests.support.small_text import SmallText, greedy

LIMIT = 5.0
PROMPT = [3, 1, 4]
OPTIONS = ArOptions(max_num_seqs=2, block_size=4, max_in_flight=2)
MODEL = SmallText()
TOKENS_STREAM = "ar-tokens"


def limited(layout: RankLayout | int = 2) -> list[Ranks]:
    return [replace(ranks, step_seconds=LIMIT) for ranks in thread_ranks(layout)]


def leader(ranks: Ranks | None = None) -> tuple[HungDevice, ArDriver]:
    """With two steps in flight, after their launch."""
    device = HungDevice()
    driver = ArDriver(MODEL, device, OPTIONS, ranks=ranks)
    driver.ask("0", PROMPT, max_tokens=9)
    for _ in range(5):
        driver.tick()
    assert driver.worker.usage()["steps"] == 2
    return device, driver


def follower() -> tuple[HungDevice, FollowerWorker]:
    """With two steps in flight, of a rank 0 that has run more."""
    first, second = limited()
    driver, device = ArDriver(MODEL, CpuDevice(), OPTIONS, ranks=first), HungDevice()
    with torch.inference_mode():
        runner, _, _ = small_runner(MODEL, device, OPTIONS, ranks=second)
    device.synchronize()
    worker = FollowerWorker("text", runner, second)
    driver.ask("0", PROMPT, max_tokens=2)
    driver.run()
    with torch.inference_mode():
        assert worker.tick()
    assert worker.usage() == {"steps": 2}
    return device, worker


def pass_time(device: HungDevice | ClockedCpu, work: Callable[[], bool], seconds: float) -> None:
    with torch.inference_mode():
        for _ in range(round(seconds)):
            device.clock += 1.0
            work()


def of_rank(rank: int) -> tuple[HungDevice, StageWorker]:
    if rank:
        return follower()
    device, driver = leader(limited()[0])
    return device, driver.worker


@pytest.mark.parametrize("call", ["tick", "poll"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_hangs_raises_out_of_the_worker(rank: int, call: str) -> None:
    device, worker = of_rank(rank)
    work = getattr(worker, call)
    pass_time(device, work, LIMIT)
    with pytest.raises(LostRankError, match=f"rank {rank} of 2 has not completed a step in 5 s"):
        pass_time(device, work, 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_time_counts_anew_when_a_step_is_complete(rank: int) -> None:
    device, worker = of_rank(rank)
    before = worker.usage()["steps"]
    pass_time(device, worker.poll, LIMIT)
    while worker.usage()["steps"] == before:
        with torch.inference_mode():
            assert device.run(operations=1)
            worker.poll()
    pass_time(device, worker.poll, LIMIT)
    with pytest.raises(LostRankError):
        pass_time(device, worker.poll, 1)


def test_a_whole_stage_waits_for_its_device() -> None:
    device, driver = leader()
    pass_time(device, driver.worker.tick, 20 * LIMIT)
    while driver.worker.requests:
        device.run()
        driver.tick()
    assert driver.tokens("0") == greedy(MODEL, PROMPT, 9)


def first_layers() -> tuple[HungDevice, ArDriver, ClockedCpu, FollowerWorker]:
    """A rank 0 whose launched steps do not run, and the rank with the first layers, which has run them at once."""
    last, first = limited(RankLayout(pipeline=2))
    hung, device = HungDevice(), ClockedCpu()
    driver = ArDriver(in_range(1, 2), hung, OPTIONS, ranks=last)
    with torch.inference_mode():
        runner, _, _ = small_runner(in_range(0, 2), device, OPTIONS, ranks=first)
    worker = FollowerWorker("text", runner, first)
    driver.ask("0", PROMPT, max_tokens=1)
    driver.tick()
    with torch.inference_mode():
        assert worker.tick()
    assert worker.usage() == {"steps": 1}, "the engine does not sleep"
    return hung, driver, device, worker


@pytest.mark.parametrize("call", ["tick", "poll"])
def test_an_idle_rank_that_awaits_tokens_times_out(call: str) -> None:
    _, _, device, worker = first_layers()
    pass_time(device, getattr(worker, call), LIMIT)
    with pytest.raises(LostRankError, match="rank 1 of 2 has not completed a step in 5 s"):
        pass_time(device, getattr(worker, call), 1)


@pytest.mark.parametrize("known", [True, False], ids=["known", "learnt by asking"])
def test_an_idle_rank_whose_tokens_have_arrived_does_not_time_out(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gloo it is not known that they have."""
    hung, driver, device, worker = first_layers()
    while not driver.ends:
        hung.run()
        driver.tick()
    if not known:
        monkeypatch.setattr(PendingTokens, "done", lambda _: False)
    pass_time(device, worker.tick, 20 * LIMIT)


def receiver_on_a_device() -> tuple[HungDevice, FollowerWorker]:
    """The rank with the first layers, whose step is complete. Its receive of tokens is enqueued and reports that it is done, as on
    CUDA: only the event after it shows whether the tokens have arrived."""
    last, first = limited(RankLayout(pipeline=2))
    driver, device = ArDriver(in_range(1, 2), HungDevice(), OPTIONS, ranks=last), HungDevice()
    silent = SilentCommunicator(0, 2)
    first = replace(first, pipeline=PipelineRank(position=0, size=2, hidden=silent, tokens=silent))
    with torch.inference_mode():
        runner, _, _ = small_runner(in_range(0, 2), device, OPTIONS, ranks=first)
    device.synchronize()
    worker = FollowerWorker("text", runner, first)
    driver.ask("0", PROMPT, max_tokens=1)
    driver.tick()
    with torch.inference_mode():
        assert worker.tick()
        device.run({stream.name for stream in device.streams} - {TOKENS_STREAM})
        assert device.run({TOKENS_STREAM}, operations=1)
        worker.poll()
    return device, worker


@pytest.mark.parametrize("call", ["tick", "poll"])
def test_tokens_whose_receive_hangs_on_the_device_are_awaited(call: str) -> None:
    device, worker = receiver_on_a_device()
    awaited = worker._runner.awaited
    assert awaited is not None
    assert awaited.arrivals.done()
    assert worker.usage() == {"steps": 1}, "the engine does not sleep"
    pass_time(device, getattr(worker, call), LIMIT)
    with pytest.raises(LostRankError, match="rank 1 of 2 has not completed a step in 5 s"):
        pass_time(device, getattr(worker, call), 1)


def test_tokens_whose_receive_is_complete_on_the_device_are_not_awaited() -> None:
    device, worker = receiver_on_a_device()
    assert device.run({TOKENS_STREAM})
    assert worker.usage() == {"steps": 0}
    pass_time(device, worker.tick, 20 * LIMIT)
