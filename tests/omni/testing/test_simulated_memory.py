"""Parts and wholes of a buffer, memory that phases allocate, rings of host slots: the checker's record of their accesses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from omni.device import COMPLETED, Phase, SharedRing, Uploader
from omni.testing import SimulatedDevice
from omni.testing.simulation.checker import name_buffer
from tests.omni.testing.pair import Pair, fill, look, races_of

TWO = torch.ones(2, 2)
INDEX = torch.tensor([0, 1])

each_mode = pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference"])


def test_all_of_a_buffer_after_parts_of_it_and_parts_after_all_of_it():
    """An access to a part precedes one to the whole, and the other way round."""
    for first, last in [("part", "whole"), ("whole", "part"), ("part", "part"), ("whole", "whole")]:
        for other in (fill, look):
            pair = Pair()
            rows = pair.rows
            regions = {"part": rows[1:3], "whole": rows}
            pair.device.launch(pair.one, fill, regions[first])
            pair.order()
            pair.device.launch(pair.one, fill, regions[last])
            pair.device.launch(pair.two, other, rows[2])
            race = pair.race()
            assert {race.first.launch, race.second.launch} == {2, 3}, (first, last)


def test_parts_that_were_touched_before_all_was_are_ordered_where_that_is():
    pair = Pair()
    rows = pair.rows
    pair.device.launch(pair.one, fill, rows[1:3])
    pair.device.launch(pair.one, fill, rows)
    pair.order()
    pair.device.launch(pair.one, look, rows[3])
    pair.device.launch(pair.two, fill, rows[:3])
    assert pair.finish() == []


@pytest.mark.parametrize("first", [fill, look])
@pytest.mark.parametrize("regions", [(slice(0, 4), slice(0, 2)), (slice(0, 2), slice(0, 4)), (slice(0, 4),) * 2])
def test_a_part_that_is_touched_again_leaves_the_rest_as_it_was_touched(first: Phase, regions: tuple[slice, slice]):
    """One stream touches a region and then, in the same way, another: both are remembered."""
    pair = Pair()
    for region in regions:
        pair.device.launch(pair.one, first, pair.rows[region])
    pair.device.launch(pair.two, fill, pair.rows[3])
    assert len(pair.finish()) == 1


Touches = list[tuple[int, bool, tuple[int, int], int]]
"""Stream, whether it writes, first and last word (excluded), bytes of an element."""
places = st.one_of(st.sampled_from([(0, 8), (0, 4), (4, 8), (2, 6)]), st.tuples(st.integers(0, 3), st.integers(4, 8)))
touches = st.lists(
    st.tuples(st.integers(0, 1), st.booleans(), places, st.sampled_from([1, 2, 4, 8])), min_size=2, max_size=4
)
TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@settings(max_examples=100)
@given(touches)
def test_races_are_reported_where_written_bytes_overlap(asked: Touches):
    """Unordered streams access any parts of a buffer: two accesses that overlap race if one of them writes."""
    device, words = SimulatedDevice(), torch.zeros(8, dtype=torch.int64)
    streams = [device.stream(str(number)) for number in range(2)]
    for stream, writes, (first, end), width in asked:
        part = words.view(TYPES[width])[first * 8 // width : end * 8 // width]
        device.launch(streams[stream], fill if writes else look, part)
    device.synchronize()
    met = any(
        one != two and (writes or wrote) and first < end_before and before < end
        for place, (one, writes, (first, end), _) in enumerate(asked)
        for two, wrote, (before, end_before), _ in asked[:place]
    )
    assert bool(device.races) == met


MAKES: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.empty(4),
    "zeros": lambda: torch.zeros(4),
    "full": lambda: torch.full((4,), 2.0),
    "of numbers": lambda: torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "like another": lambda: torch.ones_like(TWO),
    "a new one of another's type": lambda: TWO.new_zeros(4),
    "arithmetic": lambda: TWO + 1,
    "a copy": lambda: TWO.clone(),
    "a copy by contiguous": lambda: TWO.t().contiguous(),
    "a cast": lambda: TWO.to(torch.float64),
    "indexed": lambda: TWO[INDEX],
    "one of several results": lambda: torch.topk(TWO, 1)[1],
    "one of a list": lambda: torch._foreach_add([TWO], 1.0)[0],
    "a composed operation's": lambda: functional.linear(TWO, TWO, TWO[0]),
    "out that was empty": lambda: torch.add(TWO, 1, out=torch.empty(0)),
    "a view of it": lambda: (TWO + 1).t()[0],
}


def launch_maker(pair: Pair, how: str) -> list[Tensor]:
    """A phase of the first stream makes memory. Returns where it will be."""
    made = list[Tensor]()

    def make() -> None:
        made.append(MAKES[how]())

    pair.device.launch(pair.one, make)
    return made


@each_mode
@pytest.mark.parametrize("other", [fill, look])
def test_memory_of_a_phase_that_another_stream_uses(other: Phase, inference: bool):
    for how in MAKES:
        pair = Pair()
        with torch.inference_mode(inference):
            made = launch_maker(pair, how)
            pair.device.launch(pair.two, lambda made=made: other(made[0]))
            assert {race.first.by for race in pair.finish()} == {"make"}, how


@each_mode
@pytest.mark.parametrize("waits", [False, True])
def test_memory_of_a_phase_that_goes_back_under_a_reader(waits: bool, inference: bool):
    """It is its stream's again: of no use to others that have not been waited for."""
    for how in MAKES:
        pair = Pair()
        device = pair.device
        with torch.inference_mode(inference):
            made = launch_maker(pair, how)
            pair.order()
            device.launch(pair.two, lambda made=made: look(made[0]))
            if waits:
                device.wait(pair.one, device.record(pair.two))
            device.run()
            made.clear()
        found = [race.second.operation for race in device.races]
        assert found == ["giving it back to stream 'one'"] * (not waits), how


def test_memory_that_an_operation_gives_more_of_is_watched_to_its_end():
    pair, rows = Pair(), torch.zeros(2)

    def enlarge(x: Tensor) -> None:
        x.resize_(8).fill_(1)

    pair.device.launch(pair.one, look, rows[:1])
    pair.device.launch(pair.one, enlarge, rows)
    pair.device.synchronize()
    pair.device.launch(pair.one, fill, rows[6:])
    pair.device.launch(pair.two, look, rows[:6])
    pair.device.run()
    assert pair.device.races == []
    pair.device.launch(pair.two, look, rows[7])
    assert len(pair.finish()) == 1


def test_bytes_that_an_operation_adds_were_not_accessed_before():
    pair, rows = Pair(), torch.zeros(2)

    def enlarge(x: Tensor) -> None:
        x.resize_(8)

    pair.device.launch(pair.one, look, rows[:1])
    pair.device.launch(pair.one, enlarge, rows)
    pair.order()
    pair.device.run()
    pair.device.launch(pair.one, look, rows[:1])
    pair.device.launch(pair.two, fill, rows[6:])
    assert pair.finish() == []


def test_an_upload_that_another_stream_reads():
    for ordered in (False, True):
        pair = Pair()
        upload = Uploader(pair.device, pair.one, capacity=4, slots=2)
        (view,) = upload.send([np.arange(4)])
        if ordered:
            pair.order()
        pair.device.launch(pair.two, look, view)
        pair.device.run()
        assert bool(pair.device.races) != ordered
        upload.send([np.arange(4)])  # into the same buffer, without a wait for the reader
        assert {race.second.operation for race in pair.finish()} == {"copy_"} | (set() if ordered else {"sum"})


def test_shared_memory_read_or_written_too_early_is_reported():
    pair = Pair()
    shared = pair.device.shared((2, 4), torch.int64)
    ring = SharedRing(pair.device, pair.one, shared)
    pair.device.launch(pair.one, fill, shared.device[0])
    sent = ring.send()
    sent.slot.guard(COMPLETED)
    pair.device.run()
    sent.slot.read()
    race = pair.race()
    assert (race.first.by, race.second.operation) == ("fill", "HostSlot.read")
    pair.device.launch(pair.one, fill, shared.device[1])
    assert len(pair.finish()) == 1, "the other slot"


FIRST = torch.zeros(1, dtype=torch.int64)


def select_rows(tensor: Tensor) -> None:
    tensor.index_select(0, FIRST)


def fill_rows(tensor: Tensor) -> None:
    tensor.index_fill_(0, FIRST, 1.0)


def gather_element(tensor: Tensor) -> None:
    tensor.gather(0, FIRST[0])


@pytest.mark.parametrize("read", [select_rows, gather_element])
def test_a_scalar_may_be_taken_from_by_index(read: Phase):
    scalar = torch.zeros(())
    assert len(races_of([(read, scalar), (fill_rows, scalar)])) == 1
    assert scalar == 1


def test_a_buffer_is_named_among_arguments_of_every_kind():
    def phase(count: int, name: str, pages: dict[str, list[Tensor]], rows: Tensor) -> None: ...

    key, rows = torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)
    buffers = (3, "x", {"keys": [key]}, rows, object())
    assert name_buffer(phase, buffers, rows) == "rows (int64 [4])"
    assert name_buffer(phase, buffers, key) == "pages['keys'][0] (float32 [2, 3])"
    assert name_buffer(phase, buffers, torch.zeros(1)) == "a tensor (float32 [1])"
