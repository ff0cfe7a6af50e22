"""Inputs on their way to the device, in pieces."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.testing.simulation.late import QueuedDevice
from omni_encoder.batch import PieceUploader
from omni_encoder.plan import EncodePlan, EncoderInput
from tests.stages.omni_encoder.bench import Bench, media

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
def test_every_piece_of_an_upload_arrives(
    make: Callable[[], Device], given_plan: tuple[EncodePlan, dict[str, torch.Tensor]], piece_bytes: int
) -> None:
    plan, expected = given_plan
    device = make()
    uploader = PieceUploader(device, device.stream("s"), piece_bytes)
    buffer = torch.full((plan.nbytes,), 255, dtype=torch.uint8)
    for _ in range(2):
        transfer = uploader.begin(plan, buffer)
        while not transfer.finished:
            if not uploader.advance(transfer):
                device.synchronize()
    device.synchronize()
    for name, view in plan.views(buffer).items():
        assert torch.equal(view, expected[name])


def test_parts_that_do_not_fit_are_refused() -> None:
    for part in (torch.zeros(3), np.zeros(1, np.int64)):
        with pytest.raises(ValueError, match=r"input 'x' has parts of .*; it is 8 bytes of torch\.float32"):
            EncodePlan({"x": EncoderInput((2,), torch.float32, (part,))}, (), None)


@pytest.fixture
def sending() -> Bench:
    """Request "a" has an item of 10 MB: more pieces than there are slots."""
    bench = Bench(QueuedDevice())
    bench.open("a")
    bench.feed_host("a", media(0, torch.arange(2_500_000, dtype=torch.float32) % 7))
    bench.end("a")
    return bench


def test_a_long_item_takes_a_tick_a_piece_and_waits_for_slots(sending: Bench) -> None:
    for _ in range(12):
        sending.tick()
    assert sending.tower.encoded == []
    assert sending.held["batches"] == 1
    sending.settle(sending.device)
    expected = torch.arange(2_500_000, dtype=torch.float32) % 7 * 2
    assert torch.equal(sending.outputs("a")[0]["doubled"], expected)
    assert not sending.held
    assert isinstance(sending.device, QueuedDevice)
    sending.device.assert_no_races()


@pytest.mark.parametrize(("ticks", "closes"), [(1, False), (3, False), (7, False), (1, True)])
def test_an_abort_or_a_close_while_an_item_is_sent_leaves_nothing(sending: Bench, ticks: int, closes: bool) -> None:
    for _ in range(ticks):
        sending.tick()
    if closes:
        sending.worker.close()
    else:
        sending.abort("a")
    sending.settle(sending.device)
    assert not sending.held
    assert "a" not in sending.produced
