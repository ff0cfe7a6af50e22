"""Collectives of ranks in one process, against sums and concatenations of the same tensors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from omni.errors import LostRankError
from omni.parallel import Communicator, open_communicator
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


def test_a_broadcast_overwrites_by_rank_0() -> None:
    def work(ranks: Communicator) -> torch.Tensor:
        x = torch.full((3,), ranks.rank + 7)
        ranks.broadcast(x)
        return x

    assert [x.tolist() for x in on_ranks(3, work)] == [[7, 7, 7]] * 3


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


def test_a_silent_rank_works_alone_and_again_with_the_others() -> None:
    def work(ranks: Communicator) -> list[tuple[int, ...]]:
        shapes = []
        if ranks.rank == 0:
            with ranks.silent():
                x = torch.ones(3, 5)
                shapes = [tuple(ranks.all_reduce(x).shape), tuple(ranks.all_gather(x).shape)]
                ranks.broadcast(x)
        shapes.append((int(ranks.all_reduce(torch.ones(1)).item()),))
        return shapes

    assert on_ranks(2, work) == [[(3, 5), (3, 10), (2,)], [(2,)]]


def test_a_rank_that_never_comes_is_lost() -> None:
    with pytest.raises(LostRankError, match=r"^rank 0 of 2 has lost another rank of the stage: .*; see the logs"):
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


def test_a_late_rank_is_lost() -> None:
    def work(ranks: Communicator) -> None:
        if ranks.rank == 0:
            with pytest.raises(LostRankError, match=r"[Tt]imed out"):
                ranks.all_reduce(torch.ones(1))
            done.set()
        else:
            assert done.wait(PATIENCE_SECONDS)

    done = threading.Event()
    on_ranks(2, work, timeout_seconds=1)
