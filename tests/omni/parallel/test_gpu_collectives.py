"""Collectives between two GPUs: sums through peers' memory and NCCL, eagerly and in graphs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from omni.parallel import open_communicator
from omni.parallel.rank_memory import MOST_BYTES
from omni.parallel.torch_group import NcclCommunicator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (1, 7, 1024, 1025, 2048, 64 * 2048)


def given(rank: int, numbers: int, dtype: torch.dtype, call: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * call + rank)
    return torch.randn(numbers, generator=generator).to(dtype)


def expected(size: int, numbers: int, dtype: torch.dtype, call: int) -> Tensor:
    total = torch.zeros(numbers)
    for rank in range(size):
        total += given(rank, numbers, dtype, call).float()
    return total.to(dtype)


def sums(rank: int, size: int, store: str) -> None:
    device = torch.device("cuda", rank)
    # The current device is the first one, as in an engine.
    ranks = open_communicator(FileStore(store, size), rank, size, device, 60)
    torch.cuda.set_device(device)
    assert isinstance(ranks, NcclCommunicator)
    peers = ranks.rank_memory(torch.empty(1, device=device))
    assert peers is not None, "the two devices reach each other"
    for call, (dtype, numbers) in enumerate((dtype, numbers) for dtype in DTYPES for numbers in SIZES):
        x = given(rank, numbers, dtype, call).to(device)
        assert peers.takes(x)
        assert torch.equal(ranks.all_reduce(x).cpu(), expected(size, numbers, dtype, call)), (dtype, numbers)
    large = torch.full((MOST_BYTES,), float(rank + 1), device=device)
    assert not peers.takes(large)
    assert torch.equal(ranks.all_reduce(large), torch.full_like(large, size * (size + 1) / 2))
    replays(ranks, rank, size, device)
    ranks.close()


def replays(ranks: NcclCommunicator, rank: int, size: int, device: torch.device) -> None:
    """A graph of sums of two sizes, one of them through NCCL, replayed without a wait between."""
    small, other, large = (torch.zeros(n, device=device) for n in (2048, 9000, MOST_BYTES))
    total = torch.zeros(3, device=device)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for x in (small, other, large):
            ranks.all_reduce(x)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for index, x in enumerate((small, other, small, large)):
                x.fill_(rank + 1.0).add_(total[0])
                ranks.all_reduce(x)
                total[index % 3] += x.mean() / 1024
        total.zero_()
        for _ in range(200):
            graph.replay()
        stream.synchronize()
        gathered = ranks.all_gather(total[None])
        stream.synchronize()
    assert torch.equal(gathered[0, :3], gathered[0, 3:]), "the same bits at both ranks"
    assert 0 < float(total[0]) < float("inf")


def test_sums_of_two_gpus(tmp_path: Path) -> None:
    spawn(sums, (2, str(tmp_path / "store")), 2)
