"""Transfers, collectives and messages between simulated ranks: late, in order, and checked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from omni.device import Stream
from omni.parallel import Communicator, PendingReceive, RankChannel, RankLayout
from omni.testing import HangError, SimulatedDevice
from omni.testing.simulation.ranks import SimulatedRanks

SEEDS = range(12)


def fill(x: Tensor, number: float) -> None:
    x.fill_(number)


def send(communicator: Communicator, x: Tensor, to: int) -> None:
    communicator.send(x, to)


def post(communicator: Communicator, x: Tensor, to: int) -> None:
    communicator.post(x, to)


def receive(communicator: Communicator, x: Tensor, source: int, arrivals: list[PendingReceive]) -> None:
    arrivals.append(communicator.receive(x, source))


def copy_arrived(x: Tensor, out: Tensor, arrivals: Sequence[PendingReceive]) -> None:
    for arrival in arrivals:
        arrival.wait()
    out.copy_(x)


def copy(x: Tensor, out: Tensor) -> None:
    out.copy_(x)


class Come:
    """An event: the first of these is complete."""

    def __init__(self, arrivals: Sequence[PendingReceive]) -> None:
        self._arrivals = arrivals

    def done(self) -> bool:
        return bool(self._arrivals) and self._arrivals[0].done()


def run_all(devices: Sequence[SimulatedDevice]) -> None:
    while devices[0].skip():
        pass


class World:
    """Two ranks. x, y: sent by rank 0, received by rank 1."""

    def __init__(self, seed: int, *, blocks: bool | None = None) -> None:
        self.ranks = SimulatedRanks(RankLayout(pipeline=2), seed, blocks=blocks)
        self.here, self.there = self.ranks.devices[:2]
        self.x, self.y, self.out = (torch.zeros(4) for _ in range(3))
        self.arrivals: list[PendingReceive] = []

    def stream(self, rank: int, name: str) -> Stream:
        return self.ranks.devices[rank].stream(name)

    def send(
        self, rank: int, stream: Stream, x: Tensor, phase: Callable[[Communicator, Tensor, int], None] = send
    ) -> None:
        communicator = self.ranks.ranks[rank].communicator
        self.ranks.devices[rank].launch(stream, phase, communicator, x, 1 - rank)

    def receive(self, rank: int, stream: Stream, x: Tensor, arrivals: list[PendingReceive] | None = None) -> None:
        communicator = self.ranks.ranks[rank].communicator
        given = (communicator, x, 1 - rank, self.arrivals if arrivals is None else arrivals)
        self.ranks.devices[rank].launch(stream, receive, *given)

    def run(self) -> None:
        run_all([self.here])
        assert not self.here.pending + self.there.pending, self.here.describe()

    @property
    def races(self) -> int:
        return sum(len(device.races) for device in self.ranks.devices)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("blocks", [True, False])
def test_a_receive_is_ordered_after_the_work_before_its_send(seed: int, blocks: bool) -> None:
    world = World(seed, blocks=blocks)
    device, reads = world.there, world.stream(1, "reads")
    receives, sends = world.stream(1, "receives"), world.stream(0, "sends")
    world.receive(1, receives, world.y)
    device.wait(reads, device.record(receives))
    device.wait_remote(reads, Come(world.arrivals))
    device.launch(reads, copy_arrived, world.y, world.out, world.arrivals)
    world.here.launch(sends, fill, world.x, 7.0)
    world.send(0, sends, world.x)
    world.here.launch(sends, fill, world.x, 8.0)
    world.run()
    assert world.out.tolist() == [7.0] * 4
    world.ranks.assert_no_races()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("blocks", [True, False])
def test_a_reader_that_does_not_wait_for_it_is_reported(seed: int, blocks: bool) -> None:
    """On CUDA for the event of the stream, on the CPU for the arrival: neither replaces the other."""
    world = World(seed, blocks=blocks)
    device, reads, receives = world.there, world.stream(1, "reads"), world.stream(1, "receives")
    world.receive(1, receives, world.y)
    if not blocks:
        device.wait(reads, device.record(receives))
    device.launch(reads, copy, world.y, world.out)
    world.send(0, world.stream(0, "sends"), world.x)
    world.run()
    assert world.races


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("blocks", "other", "reported"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_sent_memory_is_read_until_its_stream_goes_on(seed: int, blocks: bool, other: bool, reported: bool) -> None:
    """On the CPU a copy is sent. other: whether the phase that overwrites it is on another stream."""
    world = World(seed, blocks=blocks)
    device, sends = world.here, world.stream(0, "sends")
    launched = device.record(sends)
    world.send(0, sends, world.x)
    writes = world.stream(0, "writes") if other else sends
    device.wait(writes, launched if blocks else device.record(sends))
    device.launch(writes, fill, world.x, 8.0)
    world.receive(1, world.stream(1, "receives"), world.y)
    world.run()
    assert bool(world.races) == reported
    assert reported or world.y.tolist() == [0.0] * 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("blocks", "answered", "reported"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_posted_memory_is_read_until_the_other_rank_has_it(
    seed: int, blocks: bool, answered: bool, reported: bool
) -> None:
    """answered: whether the phase that overwrites it follows an answer of that rank."""
    world = World(seed, blocks=blocks)
    posts, receives = world.stream(0, "posts"), world.stream(1, "receives")
    world.send(0, posts, world.x, post)
    world.receive(1, receives, world.y)
    if answered:
        world.send(1, receives, world.y)
        world.receive(0, posts, world.out)
    world.here.launch(posts, fill, world.x, 8.0)
    world.run()
    assert bool(world.races) == reported


@pytest.mark.parametrize("seed", SEEDS)
def test_work_after_a_post_does_not_wait_for_the_other_rank(seed: int) -> None:
    world = World(seed, blocks=True)
    posts = world.stream(0, "posts")
    world.send(0, posts, world.x, post)
    world.here.launch(posts, fill, world.out, 8.0)
    world.run()
    assert world.out.tolist() == [8.0] * 4
    world.receive(1, world.stream(1, "receives"), world.y)
    world.run()
    assert world.y.tolist() == [0.0] * 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("back", [True, False])
def test_an_answer_is_ordered_after_messages_to_its_rank(seed: int, back: bool) -> None:
    """Only an order that leads through another rank counts."""
    world = World(seed, blocks=True)
    rows, answer = torch.zeros(4), torch.zeros(4)
    one, two, echo = world.stream(0, "one"), world.stream(0, "two"), world.stream(1, "echo")
    world.here.launch(one, copy, rows, world.out)
    if back:
        world.send(0, one, world.x)
        world.receive(1, echo, world.y)
        world.send(1, echo, world.y)
    else:
        world.send(1, echo, world.y)
    world.receive(0, two, answer)
    world.here.launch(two, fill, rows, 1.0)
    world.run()
    assert bool(world.races) != back


def test_transfers_of_one_pair_keep_their_order_and_shapes() -> None:
    for seed in SEEDS:
        world = World(seed)
        sends, receives = world.stream(0, "sends"), world.stream(1, "receives")
        slots = torch.zeros(5, 4)
        for number, slot in enumerate(slots):
            x = torch.full((4,), float(number))
            world.send(0, sends, x)
            world.receive(1, receives, slot)
        world.run()
        assert slots[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        world.send(0, sends, world.x)
        world.receive(1, receives, torch.zeros(3))
        with pytest.raises(AssertionError, match=r"received torch.float32 \[4\] for torch.float32 \[3\]"):
            world.run()


def all_of(channel: RankChannel) -> bytes:
    """The messages that have arrived."""
    return b"".join(message for message in iter(channel.take, None) if message is not None)


def test_messages_come_in_order_and_late() -> None:
    waits = 0
    for seed in SEEDS:
        world = World(seed)
        leader, follower = (ranks.channel for ranks in world.ranks.ranks)
        for number in range(5):
            leader.send(bytes([number]))
        taken = all_of(follower)
        waits += len(taken) < 5
        world.run()
        assert taken + all_of(follower) == bytes(range(5))
    assert waits


def add(communicator: Communicator, x: Tensor, out: Tensor) -> None:
    out.copy_(communicator.all_reduce(x))
    out.add_(1)


def gather(communicator: Communicator, x_RN: Tensor, out: Tensor) -> None:
    out.copy_(communicator.all_gather(x_RN))


@contextmanager
def tensor_ranks(seed: int, size: int) -> Iterator[tuple[Sequence[SimulatedDevice], list[Communicator]]]:
    world = SimulatedRanks(RankLayout(tensor=size), seed)
    communicators = [each.tensor for each in world.ranks]
    yield world.devices, [each for each in communicators if each is not None]
    world.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [2, 3])
def test_phases_pause_in_collectives_until_all_ranks_have_come(seed: int, size: int) -> None:
    with tensor_ranks(seed, size) as (devices, communicators):
        sums, gathered = torch.zeros(size, 4), torch.zeros(size, 2, 3 * size)
        given = [torch.full((4,), float(rank + 1)) for rank in range(size)]
        parts = [torch.full((2, 3), float(rank)) for rank in range(size)]
        streams = [device.stream("stage") for device in devices]
        for rank, device in enumerate(devices):
            device.launch(streams[rank], fill, given[rank], float(rank + 1))
            device.launch(streams[rank], add, communicators[rank], given[rank], sums[rank])
            device.launch(streams[rank], gather, communicators[rank], parts[rank], gathered[rank])
            if rank < size - 1:
                run_all(devices)
                assert streams[0].paused is not None, "it waits for the last rank"
        run_all(devices)
        assert sums.tolist() == [[size * (size + 1) / 2 + 1] * 4] * size
        expected = torch.cat(parts, 1)
        assert all(torch.equal(each, expected) for each in gathered)
        for device in devices:
            device.assert_no_races()


def test_ranks_at_different_collectives_are_reported() -> None:
    with tensor_ranks(0, 2) as (devices, communicators):
        for device, communicator, phase in zip(devices, communicators, (add, gather), strict=True):
            x = torch.zeros(2, 2)
            device.launch(device.stream("stage"), phase, communicator, x, x.repeat(1, 2))
        with pytest.raises(AssertionError, match="different collectives: all_"):
            run_all(devices)


def test_a_rank_that_never_comes_is_a_hang_that_names_the_phase() -> None:
    world = SimulatedRanks(RankLayout(tensor=2), 0)
    communicator = world.ranks[0].tensor
    assert communicator is not None
    world.devices[0].launch(world.devices[0].stream("stage"), add, communicator, torch.zeros(2), torch.zeros(2))
    never: Callable[[], bool] = lambda: False  # noqa: E731
    with pytest.raises(HangError, match=r"stream 'stage': 0 pending, in add \(launch 1\)"):
        world.simulation([never, never], never).run()
    world.close()
