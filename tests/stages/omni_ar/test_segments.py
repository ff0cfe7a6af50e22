"""The packed upload and the gather of another stage's pages, on a device that lags behind."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.connector import Ref
from omni.device import COMPLETED, Uploader
from omni.errors import InputError
from omni.payload import PageSlice, Payload
from omni.sampling import SamplingParams
from omni.stage import Feed, lend
from omni.testing import SimulatedDevice
from omni_ar.inputs import Prompt, Segment, SegmentSlot
from omni_ar.run.request import ArRequest
from omni_ar.run.segments import SegmentIntake
from omni_local.connector import LocalConnector
from support.devices import QueuedDevice
from support.faults import LateFaultyDevice

PAGES = torch.randn(5, 4, 3)


class Lent:
    """A segment message whose tensor is a slice of `PAGES`, and the producer's reference to it."""

    def __init__(self, device: QueuedDevice, index: int, slots: list[int]) -> None:
        self.slots = slots
        connector = LocalConnector()
        self.segment = Segment(name="sound", index=index)
        payload = Payload(self.segment, {"rows": PageSlice(PAGES, np.array(slots, np.int64))})
        self.ref: Ref = connector.send(payload, COMPLETED, device.stream("transfer"))
        self.message = Feed("r", payload, COMPLETED, *lend(connector, self.ref, 1))


def intake(device: SimulatedDevice, dtype: torch.dtype = torch.float32) -> tuple[SegmentIntake, ArRequest]:
    return SegmentIntake("talker", device, device.stream("ar"), 20, dtype), ArRequest("r", SamplingParams(), set())


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=6), min_size=1, max_size=5))
def test_what_is_packed_is_what_the_device_sees(arrays: list[list[int]]):
    device = QueuedDevice()
    uploader = Uploader(device, device.stream("ar"), words=30, slots=2)
    upload = uploader.begin()
    spans = [upload.add(np.array(array, np.int64)) for array in arrays]
    floats = upload.add_floats(np.array([0.1, -3.5], np.float64)) if upload.size <= 28 else None
    uploader.launch(upload)
    device.synchronize()
    assert [uploader.view(span).tolist() for span in spans] == arrays
    if floats is not None:
        assert uploader.view(floats).view(torch.float64).tolist() == [0.1, -3.5]


def test_more_than_fits_is_refused_and_the_slot_can_be_given_back():
    device = QueuedDevice()
    uploader = Uploader(device, device.stream("ar"), words=4, slots=1)
    upload = uploader.begin()
    with pytest.raises(RuntimeError, match="take 5 words, the upload buffer has 4"):
        upload.add(np.zeros(5, np.int64))
    assert not uploader.ready
    uploader.cancel(upload)
    assert uploader.ready


def test_a_slot_is_not_taken_again_before_its_copy_is_over():
    device = QueuedDevice()
    uploader = Uploader(device, device.stream("ar"), words=4, slots=2)
    for _ in range(2):
        uploader.launch(uploader.begin())
    assert not uploader.ready
    with pytest.raises(RuntimeError, match="the ring is too small"):
        uploader.begin()
    device.synchronize()
    assert uploader.ready


def test_more_segments_than_upload_slots_are_gathered_as_slots_come_free():
    device = QueuedDevice()
    segments, request = intake(device)
    lent = [Lent(device, index, [index, 19 - index, 7]) for index in range(10)]
    for item in lent:
        segments.add(request, item.segment, item.message)
    rounds = 0
    while segments.waiting:
        assert segments.tick()
        device.synchronize()
        rounds += 1
    assert rounds > 1, "the ring was never full"
    for item in lent:
        gathered = request.segments["sound", item.segment.index].tensors["rows"]
        assert torch.equal(gathered, PAGES.flatten(0, 1)[item.slots])
        assert item.ref.freed


def test_pages_stay_their_producer_s_until_the_gather_is_over():
    device = QueuedDevice()
    segments, request = intake(device)
    lent = Lent(device, 0, [1, 2])
    segments.add(request, lent.segment, lent.message)
    segments.tick()
    assert not lent.ref.freed
    device.synchronize()
    assert lent.ref.freed


def test_a_request_that_goes_lets_go_of_what_was_not_gathered():
    device = QueuedDevice()
    segments, request = intake(device)
    lent = Lent(device, 0, [1, 2])
    segments.add(request, lent.segment, lent.message)
    segments.drop(request)
    assert lent.ref.freed
    assert segments.waiting == 0


@pytest.mark.parametrize("gathered", [False, True])
def test_a_segment_that_comes_twice_is_refused(gathered: bool):
    device = QueuedDevice()
    segments, request = intake(device)
    first, second = Lent(device, 0, [1]), Lent(device, 0, [2])
    segments.add(request, first.segment, first.message)
    if gathered:
        segments.tick()
        device.synchronize()
    with pytest.raises(InputError, match="came twice"):
        segments.add(request, second.segment, second.message)
    segments.drop(request)
    assert first.ref.freed
    assert second.ref.freed


def test_a_segment_longer_than_the_stage_is_refused():
    device = QueuedDevice()
    segments, request = intake(device)
    lent = Lent(device, 0, [1] * 21)
    said = r"segment\.sound\[0\]: has 21 rows, and talker takes 20; shorten the prompt or raise talker\.max_model_len"
    with pytest.raises(InputError, match=said):
        segments.add(request, lent.segment, lent.message)
    segments.drop(request)
    assert lent.ref.freed


def test_a_segment_of_a_medium_is_called_as_the_medium():
    """By its path in the messages, once the prompt has told which."""
    device = QueuedDevice()
    segments, request = intake(device)
    field = "messages[0].content[1].input_audio"
    slot = SegmentSlot(name="sound", index=0, positions=np.arange(4), field=field)
    request.prompt = msgspec.structs.replace(Prompt.of(np.arange(9)), segments=(slot,))
    lent = Lent(device, 0, [1, 2])
    segments.add(request, lent.segment, lent.message)
    segments.tick()
    device.synchronize()
    with pytest.raises(InputError) as wrong:
        request.check_segments()
    assert wrong.value.field == field
    again = Lent(device, 0, [1])
    with pytest.raises(InputError, match="came twice") as twice:
        segments.add(request, again.segment, again.message)
    assert twice.value.field == field
    segments.drop(request)


def test_pages_shared_by_two_inputs_are_kept_until_the_gather_ends():
    """The other input's lease keeps the release from the producer: `gathered` tells of the gather."""
    device = QueuedDevice()
    segments, request = intake(device)
    part, connector = PageSlice(PAGES, np.array([3, 1], np.int64)), LocalConnector()
    payload = Payload(Segment(name="sound", index=0), {"rows": part})
    ref = connector.send(payload, COMPLETED, device.stream("transfer"))
    mine, _other = lend(connector, ref, 2)
    segments.add(request, Segment(name="sound", index=0), Feed("r", payload, COMPLETED, mine))
    segments.tick()
    assert not ref.released
    reader = part.relocate(PAGES.clone(), part.slots, COMPLETED)
    assert not reader.done()
    device.run({"ar"})
    assert reader.done()


def test_a_segment_of_pages_and_a_tensor_is_let_go_after_its_gather():
    device = QueuedDevice()
    segments, request = intake(device)
    tensors = {"rows": PageSlice(PAGES, np.array([3, 1], np.int64)), "whole": torch.zeros(2, 1)}
    payload, connector = Payload(Segment(name="sound", index=0), tensors), LocalConnector()
    ref = connector.send(payload, COMPLETED, device.stream("transfer"))
    segments.add(request, Segment(name="sound", index=0), Feed("r", payload, COMPLETED, *lend(connector, ref, 1)))
    segments.tick()
    request.segments["sound", 0].let_go(COMPLETED)  # no step was launched
    assert ref.released
    assert not ref.freed
    device.run({"ar"})
    assert ref.freed


@pytest.mark.parametrize("whole", [False, True], ids=["converted alone", "beside one that is read in place"])
def test_what_is_of_another_dtype_is_converted_on_the_device_and_let_go_of(whole: bool):
    device = QueuedDevice()
    segments, request = intake(device, torch.bfloat16)
    made, ids = torch.randn(2, 3), torch.arange(2)[:, None]
    tensors: dict[str, PageSlice | torch.Tensor] = {"rows": PageSlice(PAGES, np.array([3, 1])), "made": made}
    payload = Payload(Segment(name="sound", index=0), tensors | ({"ids": ids} if whole else {}))
    connector = LocalConnector()
    ref = connector.send(payload, COMPLETED, device.stream("transfer"))
    segments.add(request, Segment(name="sound", index=0), Feed("r", payload, COMPLETED, *lend(connector, ref, 1)))
    segments.tick()
    assert ref.released != whole
    assert not ref.freed
    device.run({"ar"})
    assert ref.freed != whole
    taken = request.segments["sound", 0].tensors
    assert torch.equal(taken["rows"], PAGES.flatten(0, 1)[[3, 1]].bfloat16())
    assert torch.equal(taken["made"], made.bfloat16())
    assert not whole or taken["ids"] is ids


def test_a_gather_that_fails_half_way_is_reported_for_shared_payload():
    """Page rows that move must not be written again before what was launched of the gather is over."""
    device = LateFaultyDevice(None)
    segments, request = intake(device)
    parts = {name: PageSlice(PAGES, np.array(slots)) for name, slots in (("rows", [3, 1]), ("more", [2, 5]))}
    payload, connector = Payload(Segment(name="sound", index=0), dict(parts)), LocalConnector()
    ref = connector.send(payload, COMPLETED, device.stream("transfer"))
    mine, _other = lend(connector, ref, 2)
    segments.add(request, Segment(name="sound", index=0), Feed("r", payload, COMPLETED, mine))
    device.fail("gather_segment", 1, after=False)
    taken, ((failed, error),) = segments.tick()
    assert (taken, failed, str(error)) == ([], request, "a fault")
    assert not ref.released
    readers = [part.relocate(PAGES.clone(), part.slots, COMPLETED) for part in parts.values()]
    assert not readers[0].done()
    device.run({"ar"})
    assert all(reader.done() for reader in readers)
