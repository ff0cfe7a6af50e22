"""Streams of a CUDA device that are in use differ, though torch has few of them and gives them out in turn."""

from itertools import count

import pytest
import torch

from omni.device.cuda import CudaDevice


class PooledStream:
    """Of a pool of four."""

    numbers = count()

    def __init__(self, device: torch.device, priority: int) -> None:
        self.cuda_stream = 100 + next(self.numbers) % 4


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    monkeypatch.setattr(torch.cuda, "default_stream", lambda index: None)
    monkeypatch.setattr(torch.cuda, "Stream", PooledStream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    return CudaDevice(0)


def test_streams_in_use_differ(device: CudaDevice) -> None:
    kept = []
    for name in "abcdef":
        stream = device.stream(name)
        if name in "ad":
            kept.append(stream)
        del stream
    again = [device.stream(name) for name in "gh"]
    assert len({stream.raw.cuda_stream for stream in (*kept, *again)}) == 4
    assert device.stream("one too many").raw.cuda_stream in range(100, 104)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_streams_of_a_gpu_in_use_differ() -> None:
    device = CudaDevice(0)
    kept = []
    for number in range(60):
        stream = device.stream(str(number))
        if number % 3 == 0:
            kept.append(stream)
        del stream
    assert len({stream.raw.cuda_stream for stream in kept}) == len(kept) == 20
