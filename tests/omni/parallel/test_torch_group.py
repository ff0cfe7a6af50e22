"""Collectives of ranks in one process, against sums and concatenations of the same tensors."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from omni.errors import LostRankError
from omni.parallel import Communicator, open_communicator, torch_group
from omni.parallel.torch_group import TorchCommunicator, names_of
from tests.support.patience import PATIENCE_SECONDS
from tests.support.ranks import on_ranks

CPU = torch.device("cpu")


def given(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_has_the_same_bits_on_each_rank(size: int, dtype: torch.dtype) -> None:
    shapes = [(1, 1), (5, 48), (3, 7), (1, 2048), (0, 4)]

    def work(ranks: Communicator) -> list[torch.Tensor]:
        return [ranks.all_reduce(given(ranks.rank, shape, dtype)) for shape in shapes]

    first, *others = on_ranks(size, work)
    for shape, sum_ in zip(shapes, first, strict=True):
        expected = sum(given(rank, shape, dtype).double() for rank in range(size))
        assert isinstance(expected, torch.Tensor)
        assert sum_.dtype == dtype
        torch.testing.assert_close(sum_.double(), expected, rtol=0, atol=6 * size * torch.finfo(dtype).eps)
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (0, 4)])
def test_columns_are_gathered_in_the_order_of_ranks(size: int, shape: tuple[int, int]) -> None:
    expected = torch.cat([given(rank, shape) for rank in range(size)], 1)
    for gathered in on_ranks(size, lambda ranks: ranks.all_gather(given(ranks.rank, shape))):
        assert torch.equal(gathered, expected)


def test_columns_that_are_not_contiguous_are_gathered() -> None:
    expected = torch.cat([given(rank, (5, 3)).T for rank in range(2)], 1)
    for gathered in on_ranks(2, lambda ranks: ranks.all_gather(given(ranks.rank, (5, 3)).T)):
        assert torch.equal(gathered, expected)


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


@pytest.mark.parametrize("posted", [False, True])
def test_sends_copy_their_tensors_and_arrive_in_order(posted: bool) -> None:
    """More than a socket holds, overwritten at once: a send takes a copy, and does not wait for the receiver."""
    sizes = [(1,), (0, 3), (3, 5), (300, 1000), (7,)] * 3

    def work(ranks: Communicator) -> list[torch.Tensor]:
        shapes = [(shape, dtype) for shape in sizes for dtype in DTYPES]
        if ranks.rank == 1:
            for number, (shape, dtype) in enumerate(shapes):
                x = given(number, shape).to(dtype)
                send = ranks.post if posted else ranks.send
                send(x, 0)
                send(x, 2)
                x.zero_()
            return []
        received = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
        arrivals = [ranks.receive(x, 1) for x in received]
        for arrival in reversed(arrivals):
            arrival.wait()
            assert arrival.done()
        return received

    first, _, third = on_ranks(3, work)
    expected = [
        given(number, shape).to(dtype) for number, (shape, dtype) in enumerate((s, d) for s in sizes for d in DTYPES)
    ]
    for received in (first, third):
        assert all(map(torch.equal, received, expected))


def test_tensors_of_different_ranks_are_not_confused() -> None:
    def work(ranks: Communicator) -> list[int]:
        x = torch.tensor([ranks.rank])
        for other in range(3):
            if other != ranks.rank:
                ranks.send(10 * x + other, other)
        taken = []
        for other in (2, 1, 0):
            if other != ranks.rank:
                ranks.receive(x, other).wait()
                taken.append(int(x))
        return taken

    assert on_ranks(3, work) == [[20, 10], [21, 1], [12, 2]]


class CompletedWork:
    def is_completed(self) -> bool:
        return True


class CountedGroup:
    """A group without connections. tags: of its transfers, by way and other rank, in the order of the calls."""

    def __init__(self) -> None:
        self.tags: dict[tuple[str, int], list[int]] = defaultdict(list)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> CompletedWork:
        self.tags["send", to].append(tag)
        return CompletedWork()

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> CompletedWork:
        self.tags["receive", source].append(tag)
        return CompletedWork()


def test_each_transfer_of_a_pair_has_its_number_on_both_sides() -> None:
    """Gloo may deliver transfers of one number in another order."""
    x, empty, groups = torch.ones(2), torch.empty(0, 2), [CountedGroup() for _ in range(3)]
    ranks = [TorchCommunicator(group, rank, names_of(range(3), 3)) for rank, group in enumerate(groups)]
    for number in range(4):
        ranks[0].send(x, 1)
        ranks[0].post(x, 1)
        ranks[0].send(empty, 1)
        ranks[0].send(x, 2)
        if number % 2:
            ranks[1].post(x, 0)
    for _ in range(4):
        ranks[2].receive(x, 0)
    for _ in range(2):
        ranks[0].receive(x, 1)
    with ranks[1].silent():
        ranks[1].receive(x, 0)
    for _ in range(8):
        ranks[1].receive(x, 0)
        ranks[1].receive(empty, 0)
    for source, to, count in ((0, 1, 8), (0, 2, 4), (1, 0, 2)):
        sent = groups[source].tags["send", to]
        assert sent == groups[to].tags["receive", source]
        assert len(set(sent)) == count


def test_two_groups_of_one_store_do_not_meet() -> None:
    store = HashStore()

    def work(rank: int) -> tuple[float, float]:
        names = ("first", "second")
        first, second = (open_communicator(PrefixStore(name, store), rank, 2, CPU, PATIENCE_SECONDS) for name in names)
        results = (first.all_reduce(torch.ones(1)).item(), second.all_reduce(torch.full((1,), 5.0)).item())
        first.close()
        second.close()
        return results

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, range(2))) == [(2.0, 10.0)] * 2


def test_a_rank_learns_without_waiting_that_a_tensor_has_arrived() -> None:
    sent = threading.Event()

    def work(ranks: Communicator) -> list[float]:
        x, y = torch.ones(1), torch.zeros(1)
        if ranks.rank:
            ranks.send(x, 0)
            ranks.send(2 * x, 0)
            sent.set()
            return []
        first, second = ranks.receive(x, 1), ranks.receive(y, 1)
        assert sent.wait(PATIENCE_SECONDS)
        assert first.arrived()
        assert first.done()
        first.wait()
        second.wait()
        assert second.arrived()
        return [x.item(), y.item()]

    assert on_ranks(2, work)[0] == [1.0, 2.0]


def test_a_rank_learns_that_a_tensor_has_not_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_group, "_ARRIVED_SECONDS", timedelta(milliseconds=1))
    asked = threading.Event()

    def work(ranks: Communicator) -> bool:
        if ranks.rank:
            return asked.wait(PATIENCE_SECONDS)
        arrival = ranks.receive(torch.ones(1), 1)
        gave = arrival.arrived(), arrival.done()
        asked.set()
        with pytest.raises(LostRankError, match=r"^rank 0 of 2 has lost rank 1 of 2; "):
            arrival.wait()
        return any(gave)

    assert on_ranks(2, work) == [False, True]


def test_a_send_takes_a_copy_for_a_receiver_that_is_late() -> None:
    overwritten = threading.Event()

    def work(ranks: Communicator) -> torch.Tensor:
        x = given(3, (1024, 1024))
        if ranks.rank:
            ranks.send(x, 0)
            x.zero_()
            overwritten.set()
            return x
        assert overwritten.wait(PATIENCE_SECONDS)
        x.zero_()
        ranks.receive(x, 1).wait()
        return x

    received, _ = on_ranks(2, work)
    assert torch.equal(received, given(3, (1024, 1024)))


def test_a_silent_rank_works_alone_and_again_with_the_others() -> None:
    def work(ranks: Communicator) -> list[tuple[int, ...]]:
        shapes = []
        if ranks.rank == 0:
            with ranks.silent():
                x = torch.ones(3, 5)
                shapes = [tuple(ranks.all_reduce(x).shape), tuple(ranks.all_gather(x).shape)]
                ranks.send(x, 1)
                ranks.receive(x, 1).wait()
        shapes.append((int(ranks.all_reduce(torch.ones(1)).item()),))
        return shapes

    assert on_ranks(2, work) == [[(3, 5), (3, 10), (2,)], [(2,)]]


def test_a_rank_that_never_comes_is_lost() -> None:
    with pytest.raises(
        LostRankError, match=r"^rank 0 of 2 has lost rank 1 of 2; see the logs of the others; .* \(.+\)$"
    ):
        open_communicator(HashStore(), 0, 2, CPU, 0.05)


def test_a_rank_that_leaves_is_lost() -> None:
    def work(ranks: Communicator) -> str:
        if ranks.rank == 1:
            ranks.close()
            return ""
        with pytest.raises(LostRankError) as caught:
            ranks.all_reduce(torch.ones(1))
        return str(caught.value).partition(" has lost")[0]

    assert on_ranks(2, work) == ["rank 0 of 2", ""]


@pytest.mark.parametrize("way", ["sum", "transfer"])
def test_a_late_rank_is_lost(way: str) -> None:
    def work(ranks: Communicator) -> None:
        if ranks.rank == 0:
            awaited = (
                ranks.receive(torch.ones(1), 1).wait if way == "transfer" else partial(ranks.all_reduce, torch.ones(1))
            )
            with pytest.raises(LostRankError, match=r"[Tt]imed out"):
                awaited()
            done.set()
        else:
            assert done.wait(PATIENCE_SECONDS)

    done = threading.Event()
    on_ranks(2, work, timeout_seconds=1)
