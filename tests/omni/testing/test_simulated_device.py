"""When the simulated device runs what: streams in order, waits, seeds, stalls, its own clock."""

import functools
import itertools
import statistics
import time

import pytest
import torch

from omni.device import COMPLETED
from omni.testing import SimulatedDevice, check_connector
from omni.testing.simulation.shared_time import Schedule
from omni_local.connector import LocalConnector


def append(log: list[str], entry: str) -> None:
    log.append(entry)


def fail() -> None:
    raise ValueError("no")


def test_without_a_seed_nothing_runs_by_itself():
    device, log = SimulatedDevice(), list[str]()
    one, two = device.stream("one"), device.stream("two")
    for entry in "abc":
        device.launch(one, append, log, f"one-{entry}")
    device.launch(two, append, log, "two-a")
    assert (log, device.pending) == ([], 4)
    assert device.run({"one"}, operations=2) == 2
    assert log == ["one-a", "one-b"]
    assert device.run() == 2
    assert log == ["one-a", "one-b", "one-c", "two-a"]
    assert one.ran == ["append"] * 3


def test_a_stream_waits_for_an_event_and_an_event_for_its_stream():
    device, log = SimulatedDevice(), list[str]()
    one, two = device.stream("one"), device.stream("two")
    device.launch(one, append, log, "first")
    event = device.record(one)
    device.wait(two, event)
    device.wait(two, COMPLETED)
    assert len(device.waits.counts) == 1, "a wait for what is over is no wait"
    device.launch(two, append, log, "second")
    assert device.run({"two"}) == 0
    assert not event.done()
    device.run({"one"})
    assert event.done()
    device.run({"two"})
    assert log == ["first", "second"]


def test_a_phase_runs_in_the_mode_that_it_was_launched_in():
    device, modes = SimulatedDevice(), list[bool]()
    stream = device.stream("s")

    def look() -> None:
        modes.append(torch.is_inference_mode_enabled())

    with torch.inference_mode():
        device.launch(stream, look)
    device.launch(stream, look)
    device.synchronize()
    assert modes == [True, False]


def test_a_phase_raises_where_it_runs_and_the_stream_goes_on():
    device, log = SimulatedDevice(), list[str]()
    stream = device.stream("s")
    device.launch(stream, fail)
    device.launch(stream, append, log, "after")
    with pytest.raises(ValueError, match="no") as caught:
        device.run()
    assert caught.value.__notes__ == ["in phase fail"]
    assert device.launching is None
    device.run()
    assert log == ["after"]


def play(seed: int, log: list[str]) -> SimulatedDevice:
    """Three streams. The third follows the second. The host queries them now and then."""
    device = SimulatedDevice(seed)
    one, two, three = (device.stream(name) for name in ("one", "two", "three"))
    for index in range(30):
        device.launch(one, append, log, f"one-{index}")
        device.launch(two, append, log, f"two-{index}")
        device.wait(three, device.record(two))
        device.launch(three, append, log, f"three-{index}")
        device.record(one).done()
    device.synchronize()
    return device


@pytest.mark.parametrize("seed", range(5))
def test_one_seed_is_one_order(seed: int):
    first: list[str] = []
    again: list[str] = []
    one, two = play(seed, first), play(seed, again)
    assert first == again
    assert one.trace == two.trace
    assert one.now == two.now


def test_seeds_give_every_order_that_streams_and_waits_allow():
    orders = set()
    for seed in range(40):
        log: list[str] = []
        play(seed, log)
        orders.add(tuple(log))
        for stream in ("one", "two", "three"):
            mine = [entry for entry in log if entry.startswith(f"{stream}-")]
            assert mine == [f"{stream}-{index}" for index in range(30)], "stream order"
        for index in range(30):
            assert log.index(f"two-{index}") < log.index(f"three-{index}"), "a wait"
    assert len(orders) == 40
    for earlier, later in itertools.permutations(("one-9", "three-0", "two-9"), 2):
        assert any(order.index(earlier) < order.index(later) for order in orders), (earlier, later)


def test_a_stalled_stream_waits_while_others_go_on_in_simulated_time():
    began = time.monotonic()
    device, log = SimulatedDevice(seed=1), list[str]()
    device.schedule.stalls = 0  # type: ignore[union-attr]
    stalled, lively = device.stream("stalled"), device.stream("lively")
    device.launch(stalled, append, log, "stalled")
    device.stall("stalled", seconds=3600)
    late = device.record(stalled)
    for _ in range(50):
        device.launch(lively, append, log, "lively")
        while not device.record(lively).done():
            pass
    assert log == ["lively"] * 50
    assert not late.done()
    while not late.done():
        pass
    assert log[-1] == "stalled"
    assert device.now >= 3600
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_the_local_connector_keeps_its_contract_on_it():
    check_connector(LocalConnector, SimulatedDevice(seed=3))


def test_host_work_runs_late_and_gives_its_result_or_error():
    device, log = SimulatedDevice(), list[str]()

    def work(entry: str) -> str:
        log.append(entry)
        if entry == "bad":
            raise ValueError(entry)
        return entry

    worker = device.host_worker("thinking")
    good, bad = (worker.submit(functools.partial(work, entry)) for entry in ("good", "bad"))
    assert not good.done()
    with pytest.raises(RuntimeError, match="before the work was done"):
        good.result()
    device.synchronize()
    dropped = worker.submit(lambda: work("dropped"))
    worker.close()
    device.synchronize()
    assert log == ["good", "bad"]
    assert good.done()
    assert good.result() == "good"
    assert bad.done()
    with pytest.raises(ValueError, match="bad"):
        bad.result()
    assert not dropped.done()


def test_one_task_of_the_host_may_overtake_another():
    orders = set()
    for seed in range(20):
        device, log = SimulatedDevice(seed), list[str]()
        worker = device.host_worker("thinking")
        for entry in "ab":
            worker.submit(functools.partial(append, log, entry))
        device.synchronize()
        orders.add("".join(log))
    assert orders == {"ab", "ba"}


def test_stalled_phases_are_as_many_as_set_and_as_long_as_thousands():
    seen = set()
    for seed in range(20):
        schedule, pace = Schedule(seed), 1e-6
        seconds = [schedule.duration(pace) for _ in range(4000)]
        stalled = sum(took > 1000 * pace for took in seconds) / len(seconds)
        assert abs(stalled - schedule.stalls) < 0.02
        assert (stalled > 0) == (schedule.stalls > 0)
        assert 0.5 * pace < statistics.median(seconds) < pace
        seen.add(schedule.stalls)
    assert len(seen) == 3, "seeds of all kinds were drawn"
