"""Ranks that find each other, without engines: each in a thread."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch

from omni.errors import LostRankError
from omni.ipc import Channel
from omni.parallel import RankLayout, Ranks, rendezvous, silent_ranks
from omni.parallel.rendezvous import STEP_SECONDS, RankResources, open_ranks

T = TypeVar("T")
CPU = torch.device("cpu")


def ends_of(size: int) -> list[RankResources]:
    """As engines get them."""
    store = os.memfd_create("test-ranks", os.MFD_CLOEXEC)
    ends = [RankResources(store=os.dup(store)) for _ in range(size)]
    os.close(store)
    for rank in range(1, size):
        ends[0].sockets[rank], ends[rank].sockets[0] = Channel.pair()
    return ends


def together(layout: RankLayout, work: Callable[[Ranks], T]) -> list[T]:
    """What each rank gives."""
    ends = ends_of(layout.size)

    def run(rank: int) -> T:
        ranks = open_ranks(rank, layout, CPU, ends[rank])
        try:
            return work(ranks)
        finally:
            ranks.close()

    with ThreadPoolExecutor(layout.size) as threads:
        return list(threads.map(run, range(layout.size)))


def test_ranks_share_numbers_collectives_and_messages() -> None:
    def work(ranks: Ranks) -> tuple[object, ...]:
        numbers = (("rows", 10 - ranks.rank), ("rows", 5 + ranks.rank), ("pages", 3))
        least = [ranks.all_reduce_min(*each) for each in numbers]
        assert ranks.tensor is not None
        summed = ranks.tensor.all_reduce(torch.tensor([ranks.rank + 1]))
        gathered = ranks.tensor.all_gather(torch.tensor([[ranks.rank, 7]]))
        if not ranks.rank:
            ranks.channel.send(b"go")
        ranks.all_reduce_min("sent", 0)
        assert ranks.step_seconds == STEP_SECONDS
        return ranks.size, *least, summed.tolist(), gathered.tolist(), ranks.channel.take()

    first, *others = together(RankLayout(3), work)
    expected = (3, 8, 5, 3, [6], [[0, 7, 1, 7, 2, 7]])
    assert first == (*expected, None)
    assert others == [(*expected, b"go")] * 2


def test_ranks_have_groups_for_shards_and_for_layer_ranges() -> None:
    def work(ranks: Ranks) -> tuple[list[float], list[int]]:
        assert ranks.tensor is not None
        assert ranks.pipeline is not None
        same_layers = ranks.tensor.all_gather(torch.tensor([[ranks.rank]])).flatten().tolist()
        passed = []
        for communicator, ways in (
            (ranks.pipeline.hidden, ((0, 1), (1, 2))),
            (ranks.pipeline.tokens, ((2, 0), (2, 1))),
        ):
            for source, to in ways:
                x = torch.tensor([ranks.rank])
                if ranks.pipeline.position == source:
                    communicator.send(x, to)
                elif ranks.pipeline.position == to:
                    communicator.receive(x, source).wait()
                    passed.append(int(x))
        return same_layers, passed

    # Ranks 0 and 1 have the last layer range, 4 and 5 the first.
    passed = [[2], [3], [4, 0], [5, 1], [0], [1]]
    assert together(RankLayout(2, 3), work) == [
        ([rank - rank % 2, rank - rank % 2 + 1], passed[rank]) for rank in range(6)
    ]


def test_a_lost_rank_is_named_by_its_number_in_the_stage() -> None:
    """Rank 3 is the first of two in both of its groups, in the order of positions."""

    def work(ranks: Ranks) -> str | None:
        if ranks.rank != 3:
            return None
        assert ranks.pipeline is not None
        arrival = ranks.pipeline.tokens.receive(torch.ones(1), 1)
        with pytest.raises(LostRankError) as caught:
            arrival.wait()
        return str(caught.value)

    *_, said = together(RankLayout(2, 2), work)
    assert said is not None
    assert said.startswith("rank 3 of 4 has lost rank 1 of 4; ")


def test_a_rank_waits_for_others_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "START_SECONDS", 0.5)
    own, other = ends_of(2)
    with pytest.raises(LostRankError, match=r"rank 1 of 2 has not answered for 0\.5 s at start"):
        open_ranks(0, RankLayout(2), CPU, own)
    for ends in (own, other):
        os.close(ends.store)
        for end in ends.sockets.values():
            end.close()


def test_silent_ranks_have_the_shapes_and_wait_for_nobody() -> None:
    ranks = silent_ranks(1, RankLayout(2, 2))
    assert ranks.tensor is not None
    assert ranks.pipeline is not None
    assert (ranks.tensor.rank, ranks.pipeline.position, ranks.pipeline.last) == (1, 1, True)
    assert [silent_ranks(0, RankLayout(4)).pipeline, silent_ranks(0, RankLayout(1, 4)).tensor] == [None, None]
    assert (ranks.rank, ranks.size, ranks.communicator.rank, ranks.communicator.size) == (1, 4, 1, 4)
    x = torch.ones(2, 3)
    with ranks.communicator.silent():
        assert ranks.communicator.all_reduce(x) is x
        assert ranks.communicator.all_gather(x).shape == (2, 12)
        assert ranks.communicator.all_gather(torch.ones(2, 3, device="meta")).shape == (2, 12)
        ranks.communicator.send(x, 0)
        ranks.communicator.receive(x, 0).wait()
    assert ranks.all_reduce_min("rows", 7) == 7
    assert (ranks.channel.descriptor, ranks.channel.take()) == (None, None)
