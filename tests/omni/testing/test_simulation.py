"""Driving on a simulated device: actions at their moments, errors for hangs that name the waits."""

from functools import partial

import pytest
import torch
from torch import Tensor

from omni.device import Event
from omni.testing import HangError, SimulatedDevice, Simulation


def add_one(rows: Tensor) -> None:
    rows.add_(1)


class Counter:
    """Launches a phase when it is asked to, and waits for it before the next."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.stream = device.stream("counter")
        self.rows = torch.zeros(1)
        self.asked = 0
        self.counted = 0
        self.under_way: Event | None = None

    def ask(self) -> None:
        self.asked += 1

    def tick(self) -> bool:
        if self.under_way is not None:
            if not self.under_way.done():
                return False
            self.counted += 1
            self.under_way = None
        if self.counted == self.asked:
            return False
        self.device.launch(self.stream, add_one, self.rows)
        self.under_way = self.device.record(self.stream)
        return True

    def idle(self) -> bool:
        return self.under_way is None and self.counted == self.asked


@pytest.mark.parametrize("seed", range(5))
def test_a_simulation_runs_until_all_is_done(seed: int):
    device = SimulatedDevice(seed)
    counter = Counter(device)
    simulation = Simulation(device, counter.tick, counter.idle)
    moments = [simulation.sometime(1000, counter.ask, "ask") for _ in range(20)]
    simulation.run()
    assert counter.rows.item() == counter.counted == 20
    assert len(set(moments)) > 10
    assert simulation.ticks > max(moments)


def test_actions_come_before_the_rounds_that_they_name_in_order():
    """A round in the far future is reached at once if all earlier rounds are empty."""
    device, came = SimulatedDevice(1), list[tuple[int, int]]()

    def act(tick: int) -> None:
        came.append((tick, simulation.ticks))

    counter = Counter(device)
    simulation = Simulation(device, counter.tick, counter.idle)
    for tick in (70, 3, 0, 500):
        simulation.at(tick, partial(act, tick))
    simulation.run()
    assert came == [(0, 0), (3, 3), (70, 70), (500, 500)]


def test_the_device_goes_on_beside_a_host_that_is_busy_with_other_things():
    """No event is queried, and every round has work: only the rounds advance the time."""
    device = SimulatedDevice(3)
    device.launch(device.stream("main"), add_one, torch.zeros(1))
    rounds = 0

    def tick() -> bool:
        nonlocal rounds
        rounds += 1
        assert rounds < 20_000, "time stands still"
        return True

    Simulation(device, tick, lambda: not device.pending).run()
    assert device.done == 1


def test_a_hang_names_the_waits():
    device = SimulatedDevice(1)
    counter, other = Counter(device), device.stream("other")

    class Never:
        def done(self) -> bool:
            return False

        def __repr__(self) -> str:
            return "an event that never comes"

    device.wait(counter.stream, Never())
    device.wait(other, device.record(counter.stream))
    counter.ask()
    simulation = Simulation(device, counter.tick, counter.idle, lambda: "one count is missing")
    with pytest.raises(HangError) as caught:
        simulation.run()
    report = str(caught.value)
    assert "stream 'counter': 4 pending, first a wait for an event that never comes" in report
    assert "stream 'other': 1 pending, first a wait for event 1 of stream 'counter'" in report
    assert "test_simulation.Counter.tick#1 asks for an event of stream 'counter'" in report
    assert "one count is missing" in report


def test_a_loop_without_pending_work_is_reported_as_a_hang():
    device = SimulatedDevice(1)
    with pytest.raises(HangError, match="nothing is pending on the device"):
        Simulation(device, lambda: False, lambda: False).run()


def test_a_device_without_a_seed_cannot_be_driven():
    with pytest.raises(ValueError, match="seed"):
        Simulation(SimulatedDevice(), lambda: False, lambda: True)
