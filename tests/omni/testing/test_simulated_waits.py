"""Waits by name: found in the source, reached in a run, left out."""

import pytest
import torch
from torch import Tensor

from omni.device import Event
from omni.testing import SimulatedDevice


def write(rows: Tensor) -> None:
    rows.fill_(1)


def read(rows: Tensor) -> None:
    rows.sum()


HERE = __name__


class Asker:
    def twice(self, first: Event, second: Event) -> tuple[bool, bool]:
        return first.done(), (
            second
            .done()
        )  # fmt: skip

    def in_a_comprehension(self, *events: Event) -> bool:
        one = all(event.done() for event in events)
        return one and [event.done() for event in events] == [True] * len(events)

    def in_a_function(self, event: Event) -> bool:
        def ask() -> bool:
            return event.done()

        return ask()


def pair(device: SimulatedDevice, rows: Tensor) -> None:
    """A wait whose argument has a name is one like others."""
    one, two = device.stream("one"), device.stream("two")
    device.launch(one, write, rows)
    device.wait(two, event=device.record(one))
    device.launch(two, read, rows)


def test_waits_are_named_by_where_they_stand():
    device = SimulatedDevice()
    event, asker = device.record(device.stream("s")), Asker()
    asker.twice(event, event)
    device.run()
    asker.in_a_comprehension(event, event)
    asker.in_a_function(event)
    pair(device, torch.zeros(1))
    counts = {name: (count.asked, count.late) for name, count in device.waits.counts.items()}
    assert counts == {
        f"{HERE}.Asker.twice#1": (1, 1),
        f"{HERE}.Asker.twice#2": (1, 1),
        f"{HERE}.Asker.in_a_comprehension#1": (2, 0),
        f"{HERE}.Asker.in_a_comprehension#2": (2, 0),
        f"{HERE}.Asker.in_a_function.ask#1": (1, 0),
        f"{HERE}.pair#1": (1, 1),
    }


class Both:
    """An event made of others."""

    def __init__(self, *events: Event) -> None:
        self.events = events

    def done(self) -> bool:
        return all(event.done() for event in self.events)


def ask_both(event: Event) -> bool:
    return event.done()


def test_an_event_made_of_others_is_waited_for_in_both_places():
    device = SimulatedDevice()
    stream = device.stream("s")
    both = Both(device.record(stream), device.record(stream))
    assert not ask_both(both)
    device.run()
    assert ask_both(both)
    counts = {name: (count.asked, count.late) for name, count in device.waits.counts.items()}
    assert counts == {f"{HERE}.Both.done#1": (3, 1), f"{HERE}.ask_both#1": (3, 1)}


@pytest.mark.parametrize("wait", ["Both.done#1", "ask_both#1"])
def test_either_of_two_waits_can_be_removed(wait: str):
    device = SimulatedDevice(without=f"{HERE}.{wait}")
    stream = device.stream("s")
    assert ask_both(Both(device.record(stream), device.record(stream)))


def test_a_wait_of_a_stream_that_is_left_out_is_not_kept():
    rows = torch.zeros(3)
    whole = SimulatedDevice()
    pair(whole, rows)
    whole.synchronize()
    whole.assert_no_races()
    device = SimulatedDevice(without=f"{HERE}.pair#1")
    pair(device, rows)
    device.synchronize()
    assert [(race.first.by, race.second.by) for race in device.races] == [("write", "read")]


def test_a_removed_wait_of_the_host_orders_nothing():
    def ask(event: Event) -> bool:
        return event.done()

    device, rows = (
        SimulatedDevice(without=f"{HERE}.{test_a_removed_wait_of_the_host_orders_nothing.__name__}.ask#1"),
        torch.zeros(3),
    )
    one, two = device.stream("one"), device.stream("two")
    device.launch(one, write, rows)
    event = device.record(one)
    assert ask(event), "it goes on at once"
    device.run()
    assert ask(event)
    device.launch(two, read, rows)
    device.synchronize()
    assert len(device.races) == 1
