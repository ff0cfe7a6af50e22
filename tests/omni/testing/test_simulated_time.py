"""The simulated device's time: it passes with every call of the host, some phases stall, and nobody waits for what is over."""

import statistics

import pytest
import torch
from torch import Tensor

from omni.device import COMPLETED, Phase
from omni.testing import SimulatedDevice, Simulation
from omni.testing.simulation.checker import name_buffer
from omni.testing.simulation.device import Schedule

ROUNDS = 20_000


def add_one(rows: Tensor) -> None:
    rows.add_(1)


def test_the_device_goes_on_beside_a_host_that_is_busy_with_other_things():
    """Nobody asks for an event, and every round does something: only the rounds themselves make time pass."""
    device = SimulatedDevice(3)
    device.launch(device.stream("main"), add_one, torch.zeros(1))
    rounds = 0

    def tick() -> bool:
        nonlocal rounds
        rounds += 1
        assert rounds < ROUNDS, "time stands still"
        return True

    Simulation(device, tick, lambda: not device.pending).run()
    assert device.done == 1


def test_an_action_comes_before_the_round_that_it_names():
    device, rounds, came = SimulatedDevice(1), [], []

    def tick() -> bool:
        rounds.append(simulation.ticks)
        return False

    simulation = Simulation(device, tick, lambda: len(rounds) > 4)
    for round_ in (0, 1, 3):
        simulation.at(round_, lambda round_=round_: came.append((round_, len(rounds))))
    simulation.run()
    assert came == [(0, 0), (1, 1), (3, 3)]
    assert rounds == list(range(len(rounds)))


def test_a_wait_for_what_is_over_is_no_wait():
    device = SimulatedDevice()
    stream = device.stream("main")
    device.wait(stream, COMPLETED)
    assert device.pending == 0
    assert not device.waits.counts


def test_stalled_phases_are_as_many_as_said_and_take_as_long_as_thousands():
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


FIRST = torch.zeros(1, dtype=torch.int64)


def select_rows(tensor: Tensor) -> None:
    tensor.index_select(0, FIRST)


def fill_rows(tensor: Tensor) -> None:
    tensor.index_fill_(0, FIRST, 1.0)


def gather_element(tensor: Tensor) -> None:
    tensor.gather(0, FIRST[0])


@pytest.mark.parametrize("read", [select_rows, gather_element])
def test_a_scalar_may_be_taken_from_by_index(read: Phase):
    device, scalar = SimulatedDevice(), torch.zeros(())
    device.launch(device.stream("one"), read, scalar)
    device.launch(device.stream("other"), fill_rows, scalar)
    device.synchronize()
    assert scalar == 1
    assert len(device.races) == 1


def test_a_buffer_is_named_among_arguments_of_every_kind():
    def phase(count: int, name: str, pages: dict[str, list[Tensor]], rows: Tensor) -> None: ...

    key, rows = torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)
    buffers = (3, "x", {"keys": [key]}, rows, object())
    assert name_buffer(phase, buffers, rows) == "rows (int64 [4])"
    assert name_buffer(phase, buffers, key) == "pages['keys'][0] (float32 [2, 3])"
    assert name_buffer(phase, buffers, torch.zeros(1)) == "a tensor (float32 [1])"
