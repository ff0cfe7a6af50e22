"""Inputs on their way to the device, in pieces."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.payload import Payload
from omni_encoder.inputs import MediaItem
from omni_encoder.options import EncoderOptions
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_encoder.upload import PieceUploader
from omni_encoder.worker import EncoderWorker
from tests.support.devices import QueuedDevice
from tests.support.stage_driver import StageDriver
from tests.support.tower import Tower

_DTYPES = (torch.int32, torch.int64, torch.float32)


@st.composite
def plans(draw: st.DrawFn) -> tuple[EncodePlan, dict[str, torch.Tensor]]:
    """Inputs of several parts and how they should arrive."""
    inputs, expected = {}, {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        dtype = draw(st.sampled_from(_DTYPES))
        counts = draw(st.lists(st.integers(0, 70), max_size=4))
        parts = [torch.randint(1, 1000, (count,)).to(dtype) for count in counts]
        rest = draw(st.integers(0 if sum(counts) else 1, 90))
        arrays = tuple(part.numpy() if index % 2 else part for index, part in enumerate(parts))
        inputs[name] = EncoderInput((sum(counts) + rest,), dtype, arrays)
        expected[name] = torch.cat([*parts, torch.zeros(rest, dtype=dtype)])
    return EncodePlan(inputs, (), None), expected


@pytest.mark.parametrize("make", [CpuDevice, QueuedDevice])
@given(given_plan=plans(), piece_bytes=st.integers(1, 600))
@settings(max_examples=25)
def test_everything_arrives(
    make: type[Device], given_plan: tuple[EncodePlan, dict[str, torch.Tensor]], piece_bytes: int
) -> None:
    plan, expected = given_plan
    device = make()
    stream = device.stream("s")
    uploader = PieceUploader(device, stream, piece_bytes)
    buffer = torch.full((plan.nbytes,), 255, dtype=torch.uint8)
    for _ in range(2):
        transfer = uploader.begin(plan, buffer)
        while not transfer.over:
            if not uploader.advance(transfer):
                device.synchronize()
    device.synchronize()
    for name, view in plan.views(buffer).items():
        assert torch.equal(view, expected[name])


def test_parts_that_do_not_fit_are_refused() -> None:
    for part in (torch.zeros(3), np.zeros(1, np.int64)):
        with pytest.raises(ValueError, match=r"input 'x' has parts of .*; it is 8 bytes of torch\.float32"):
            EncodePlan({"x": EncoderInput((2,), torch.float32, (part,))}, (), None)


class Bench(StageDriver):
    def __init__(self, device: Device) -> None:
        self.tower = Tower()
        super().__init__(EncoderWorker("tower", device, self.tower, EncoderOptions()), device.stream("test"))

    def feed_long(self, request: str, values: torch.Tensor) -> None:
        meta = MediaItem(index=0, key=request, batch_key=0, length=1)
        self.feed_host(request, Payload(meta, {"x": values}))


@pytest.fixture
def long() -> torch.Tensor:
    """10 MB: more pieces than there are slots."""
    return torch.arange(2_500_000, dtype=torch.float32) % 7


def test_a_long_item_takes_a_tick_a_piece_and_waits_for_slots(long: torch.Tensor) -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.open("a")
    bench.feed_long("a", long)
    bench.end("a")
    for _ in range(12):
        bench.tick()
    assert bench.tower.encoded == []
    assert bench.held["batches"] == 1
    bench.settle(device)
    doubled = bench.produced["a"][0].payload.tensors["doubled"]
    assert isinstance(doubled, torch.Tensor)
    assert torch.equal(doubled, long * 2)
    assert not bench.held
    device.assert_no_races()


@pytest.mark.parametrize("ticks", [1, 3, 7])
def test_an_abort_while_an_item_is_sent_frees_everything(long: torch.Tensor, ticks: int) -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.open("a")
    bench.feed_long("a", long)
    for _ in range(ticks):
        bench.tick()
    bench.abort("a")
    bench.settle(device)
    assert not bench.held
    assert "a" not in bench.produced


def test_a_close_while_an_item_is_sent_leaves_nothing(long: torch.Tensor) -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.open("a")
    bench.feed_long("a", long)
    bench.tick()
    bench.worker.close()
    device.synchronize()
    assert not bench.held
