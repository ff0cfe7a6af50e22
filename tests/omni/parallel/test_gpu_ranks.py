"""Collectives between GPUs: on the stream that is current, without a wait of the host, and in captured graphs."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from omni.parallel import Communicator, open_communicator
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
WIDTH = 2048


def on_gpus(work: Callable[[Communicator, torch.device], list[Tensor]]) -> list[list[Tensor]]:
    """What `work` returns on each of two GPUs, on the host."""
    store = HashStore()

    def run(rank: int) -> list[Tensor]:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        communicator = open_communicator(store, rank, 2, device, PATIENCE_SECONDS)
        try:
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(device)):
                return [tensor.cpu() for tensor in work(communicator, device)]
        finally:
            communicator.close()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def given(rank: int, seed: int, rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(2 * seed + rank)).bfloat16()


def expected(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    parts = [given(rank, seed, rows) for rank in range(2)]
    return parts[0] + parts[1], torch.cat(parts, 1)


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_collectives_follow_the_current_stream_and_the_host_does_not_wait(rows: int) -> None:
    def work(ranks: Communicator, device: torch.device) -> list[Tensor]:
        x = given(ranks.rank, 0, rows).to(device)
        # Long work before it on the stream: a collective on another stream would read `late` too early.
        late, busy = torch.zeros_like(x), torch.randn(4096, 4096, device=device)
        # The first of each may compile a kernel or connect the GPUs, for which the host waits.
        ranks.all_reduce(torch.zeros_like(x))
        ranks.all_gather(torch.zeros_like(x))
        torch.cuda.synchronize(device)
        for _ in range(100):
            busy = busy @ busy / 64
        late.copy_(x)
        ready = torch.cuda.Event()
        ready.record()
        results = [ranks.all_reduce(late.clone()), ranks.all_gather(late)]
        assert not ready.query(), "the host waited, or the work before was too short"
        return results

    for result in on_gpus(work):
        for ours, wanted in zip(result, expected(0, rows), strict=True):
            assert torch.equal(ours, wanted)


def test_transfers_follow_the_current_stream_and_the_host_does_not_wait() -> None:
    """Later work on the stream may overwrite the sent tensor."""

    def work(ranks: Communicator, device: torch.device) -> list[Tensor]:
        busy, received = torch.randn(4096, 4096, device=device), []
        slot = torch.zeros(300, WIDTH, dtype=torch.bfloat16, device=device)
        given_3 = [given(0, seed, 300).to(device) for seed in range(3)]
        torch.cuda.synchronize(device)
        for _ in range(100):
            busy = busy @ busy / 64
        ready = torch.cuda.Event()
        ready.record()
        for x in given_3:
            if ranks.rank == 0:
                slot.copy_(x)
                ranks.send(slot, 1)
            else:
                ranks.receive(slot, 0).wait()
                received.append(slot.clone())
        assert not ready.query(), "the host waited, or the work before was too short"
        return received

    _, received = on_gpus(work)
    assert all(torch.equal(x, given(0, seed, 300)) for seed, x in enumerate(received))


def test_work_after_a_post_does_not_wait_for_the_other_gpu() -> None:
    """More than NCCL's own buffers hold: a send would not end before the receive begins."""
    gone_on = threading.Event()

    def work(ranks: Communicator, device: torch.device) -> list[Tensor]:
        slot = torch.zeros(8192, WIDTH, dtype=torch.bfloat16, device=device)
        if ranks.rank == 0:
            slot.copy_(given(0, 0, 8192))
            ranks.post(slot, 1)
            later = torch.cuda.Event()
            later.record()
            later.synchronize()
            gone_on.set()
        else:
            assert gone_on.wait(PATIENCE_SECONDS)
            ranks.receive(slot, 0).wait()
        return [slot]

    _, (received,) = on_gpus(work)
    assert torch.equal(received, given(0, 0, 8192))


def test_a_captured_graph_contains_the_collectives() -> None:
    def work(ranks: Communicator, device: torch.device) -> list[Tensor]:
        x, graph, found = given(ranks.rank, 0, 4).to(device), torch.cuda.CUDAGraph(), []
        stream = torch.cuda.current_stream(device)
        ranks.all_reduce(x.clone())
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        results = (ranks.all_reduce(x.clone()), ranks.all_gather(x))
        graph.capture_end()
        for seed in range(3):
            x.copy_(given(ranks.rank, seed, 4))
            graph.replay()
            # Between replays, an eager one.
            found += [result.clone() for result in results] + [ranks.all_reduce(x.clone())]
        stream.synchronize()
        graph.reset()
        return found

    for result in on_gpus(work):
        for seed in range(3):
            sum_RN, columns_RN = expected(seed, 4)
            for ours, wanted in zip(result[3 * seed :][:3], (sum_RN, columns_RN, sum_RN), strict=True):
                assert torch.equal(ours, wanted)
