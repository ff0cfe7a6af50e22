"""The vocoder stage, driven by hand-made messages."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.chunks import AudioChunk
from omni.device.cpu import CpuDevice
from omni.payload import PageSlice, Payload
from omni.stage import Done, Failed
from omni.testing import LaunchGuard
from omni_vocoder.inputs import CodeFrames
from omni_vocoder.options import VocoderOptions
from support.faults import FaultyDevice
from support.queued_device import QueuedDevice
from support.vocoder_bench import Bench, frames, random_codes
from support.wavemaker import POISON, WaveMaker, whole_wave


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("later", [1, 4])
@pytest.mark.parametrize("pages", [True, False])
def test_streamed_frames_make_the_whole_wave(first: int, later: int, pages: bool) -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=first, chunk_frames=later)
    codes = random_codes(21)
    bench.open("a")
    for frame in np.split(codes, 21):
        bench.feed_pages("a", frame) if pages else bench.feed_host("a", frames(torch.from_numpy(frame)))
        bench.tick()
    bench.end("a")
    bench.settle(bench.device)
    bench.expect_whole("a", codes)
    # Every chunk but the last has the size asked for.
    sizes = [frame_count for _, frame_count, _ in bench.model.batches]
    assert sizes == [first] + [later] * ((21 - first) // later) + [(21 - first) % later] * ((21 - first) % later > 0)
    assert not bench.held


def test_the_first_chunk_does_not_wait_for_the_second() -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=3, chunk_frames=10)
    codes = random_codes(4)
    bench.open("a")
    for frame in codes[:2]:
        bench.feed_pages("a", frame[None])
    bench.settle(bench.device)
    assert not bench.produced
    bench.feed_pages("a", codes[2:3])
    bench.settle(bench.device)
    np.testing.assert_allclose(bench.wave("a"), whole_wave(bench.model, codes[:3].tolist()), rtol=1e-6)
    bench.feed_pages("a", codes[3:])
    bench.end("a")
    bench.settle(bench.device)
    bench.expect_whole("a", codes)


@given(data=st.data())
def test_any_arrival_order_batching_and_timing_gives_each_its_own_wave(data: st.DataObject) -> None:
    """Requests, inputs and device progress in any order; more requests than rows; inputs longer than a row's ring."""
    device = QueuedDevice()
    options = {"first_chunk_frames": data.draw(st.integers(1, 4)), "chunk_frames": data.draw(st.integers(1, 4))}
    bench = Bench(device, WaveMaker(lookahead=data.draw(st.integers(0, 5))), max_num_seqs=2, **options)
    codes = {name: random_codes(data.draw(st.integers(1, 24)), seed) for seed, name in enumerate("abcd")}
    left = {name: list(rows) for name, rows in codes.items()}
    bench.open(*codes)
    refs = []
    while left:
        name = data.draw(st.sampled_from(sorted(left)))
        count = data.draw(st.integers(1, 24))
        refs.append(bench.feed_pages(name, np.array(left[name][:count])))
        del left[name][:count]
        if not left[name]:
            del left[name]
            bench.end(name)
        for _ in range(data.draw(st.integers(0, 3))):
            bench.tick()
            device.run(
                {data.draw(st.sampled_from(["vocoder", "vocoder-copy"]))}, operations=data.draw(st.integers(0, 6))
            )
    bench.settle(device)
    for name in codes:
        if len(codes[name]) >= bench.model.min_first_frames:
            bench.expect_whole(name, codes[name])
        else:
            assert bench.ends[name] == Done(name, "empty", {"frames": 0, "samples": 0})
    assert all(ref.freed for ref in refs)
    assert not bench.held


def test_rows_that_are_ready_together_are_decoded_together() -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=2, chunk_frames=2)
    names = "abcd"
    bench.open(*names)
    for name in names[:3]:
        bench.feed_pages(name, random_codes(4))
    bench.feed_pages("d", random_codes(1))
    bench.end(*names)
    bench.settle(bench.device)
    assert bench.model.batches == [(3, 2, True), (1, 1, True), (3, 2, False)]


def test_first_chunks_go_before_later_ones() -> None:
    device = QueuedDevice()
    bench = Bench(device, first_chunk_frames=1, chunk_frames=1)
    bench.open("old", "new", "busy")
    bench.feed_pages("old", random_codes(1))
    bench.settle(device)
    bench.feed_pages("busy", random_codes(1))
    bench.feed_pages("old", random_codes(1))
    bench.tick()
    device.run()
    assert bench.model.batches == [(1, 1, True), (1, 1, True), (1, 1, False)]


def test_nothing_is_read_before_it_is_ready_and_leases_end_after_the_copy() -> None:
    device = QueuedDevice()
    bench = Bench(device, first_chunk_frames=2, chunk_frames=2)
    codes = random_codes(4)
    talker = device.stream("talker")
    slots = bench._slots[:4]
    device.launch(talker, lambda: bench.write(slots[:2], codes[:2]))
    written = device.record(talker)
    device.launch(talker, lambda: bench.write(slots[2:], codes[2:]))
    bench.open("a")
    first = bench.feed_pages("a", codes[:2], written, write=False)
    second = bench.feed_pages("a", codes[2:], device.record(talker), write=False)
    bench.end("a")
    bench.tick()
    assert bench.held == {"requests": 1, "rows": 1, "leases": 2}
    device.run({"talker"}, operations=2)
    bench.tick()
    assert bench.held == {"requests": 1, "rows": 1, "leases": 1, "batches": 1}
    assert not first.freed
    device.run({"vocoder"}, operations=4)  # the upload, its event, the gather, its event
    assert first.freed
    bench.pages[:] = POISON  # the talker may write there again; the second half is not written yet
    device.run({"vocoder"})
    bench.tick()
    assert not bench.produced  # decoded, but not on the host
    device.run({"vocoder-copy"})
    bench.tick()
    assert len(bench.chunks("a")) == 1
    assert not second.freed
    bench.settle(device)
    bench.expect_whole("a", codes)


@pytest.mark.parametrize("moment", range(24))
def test_an_abort_at_any_moment_frees_everything_and_harms_nobody(moment: int) -> None:
    device = QueuedDevice()
    bench = Bench(device, max_num_seqs=2, first_chunk_frames=1, chunk_frames=2)
    codes = {name: random_codes(12, seed) for seed, name in enumerate("abc")}
    bench.open(*codes)
    talker = device.stream("talker")
    refs = []
    for part in range(0, 12, 4):
        for name, rows in codes.items():
            device.launch(talker, lambda: None)
            refs.append(bench.feed_pages(name, rows[part : part + 4], device.record(talker)))
    bench.end(*codes)
    for step in range(moment):
        bench.tick()
        device.run(operations=step % 5)
    if "a" in bench.ends:
        assert moment > 10
    bench.abort("a")
    heard = bench.wave("a")
    bench.settle(device)
    assert np.array_equal(bench.wave("a"), heard)
    for name in "bc":
        bench.expect_whole(name, codes[name])
    assert all(ref.freed for ref in refs)
    assert not bench.held
    assert not device.pending


def test_device_memory_is_touched_in_phases_only() -> None:
    device = CpuDevice()
    bench = Bench(device, first_chunk_frames=2, chunk_frames=2)
    codes = random_codes(7)
    bench.open("a")
    bench.feed_pages("a", codes)
    bench.end("a")
    with LaunchGuard(device) as guard:
        bench.settle(device)
    bench.expect_whole("a", codes)
    assert guard.launched == {"copy_upload", "gather_frames", "reset_rows", "decode_frames", "download_samples"}


def test_a_row_starts_anew_for_its_next_request() -> None:
    device = QueuedDevice()
    bench = Bench(device, max_num_seqs=1, first_chunk_frames=2, chunk_frames=2)
    codes = random_codes(6, 1)
    bench.open("gone", "next")
    bench.feed_pages("gone", random_codes(4, 2))
    bench.tick()  # its first chunk is on the device when it goes, and the row is given on
    bench.abort("gone")
    bench.feed_pages("next", codes)
    bench.end("next")
    bench.tick()
    assert bench.held["batches"] == 2
    bench.settle(device)
    assert "gone" not in bench.produced
    bench.expect_whole("next", codes)


def test_a_failing_batch_fails_its_requests_only() -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=2, chunk_frames=2)
    good, later = random_codes(3), random_codes(5, 7)
    bench.open("bad", "with bad", "good")
    ref = bench.feed_pages("bad", np.array([[1, 2], [3, POISON], [4, 5]]))
    bench.feed_pages("with bad", random_codes(2))
    bench.feed_pages("good", good[:1])
    bench.tick()
    bench.feed_pages("good", good[1:])
    bench.end("good")
    bench.settle(bench.device)
    for name in ("bad", "with bad"):
        assert isinstance(failed := bench.ends[name], Failed)
        assert "stage 'vocoder' failed while decoding a chunk, in phase decode_frames" in str(failed.error)
    assert ref.freed
    bench.expect_whole("good", good)
    assert not bench.held
    bench.open("later")
    bench.feed_pages("later", later)
    bench.end("later")
    bench.settle(bench.device)
    bench.expect_whole("later", later)


def test_a_copy_that_fails_fails_its_request_only() -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=2, chunk_frames=2)
    codes = random_codes(3)
    bench.open("bad", "good")
    foreign = torch.zeros((1, 4, 2), dtype=torch.int64)
    ref = bench.feed("bad", frames(PageSlice(foreign, np.array([0, 10**6]))))
    bench.feed_pages("good", codes)
    bench.end("bad", "good")
    bench.settle(bench.device)
    assert isinstance(failed := bench.ends["bad"], Failed)
    assert "while taking its frames, in phase gather_frames" in str(failed.error)
    assert ref.freed
    bench.expect_whole("good", codes)
    assert not bench.held


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (Payload(CodeFrames(count=1)), "CodeFrames with a tensor 'codes'"),
        (
            Payload(AudioChunk(samples=np.empty(0, np.float32), sample_rate=1), {"codes": torch.zeros(1, 2)}),
            "CodeFrames",
        ),
        (frames(torch.zeros((1, 2), dtype=torch.int32)), "wanted 1 int64 frames of 2 code groups"),
        (frames(torch.zeros((1, 3), dtype=torch.int64)), "codes are torch.int64 [1, 3]; wanted"),
        (
            Payload(CodeFrames(count=2), {"codes": torch.zeros((1, 2), dtype=torch.int64)}),
            "codes are torch.int64 [1, 2]; wanted 2",
        ),
    ],
)
def test_a_wrong_input_fails_the_request_and_is_let_go(payload: Payload, problem: str) -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    ref = bench.feed("a", payload)
    bench.settle(bench.device)
    assert isinstance(failed := bench.ends["a"], Failed)
    assert problem in str(failed.error)
    assert ref.freed
    assert not bench.held


def test_a_model_that_breaks_its_promise_of_samples_is_found_out() -> None:
    class Short(WaveMaker):
        def samples(self, frames: int, first: bool) -> int:
            return super().samples(frames, first) + 1

    bench = Bench(CpuDevice(), Short())
    bench.open("a")
    bench.feed_pages("a", random_codes(3))
    bench.end("a")
    bench.settle(bench.device)
    assert isinstance(failed := bench.ends["a"], Failed)
    assert "promised (1, 8)" in str(failed.error)


def test_every_source_must_end() -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=2, chunk_frames=2)
    codes = random_codes(3)
    bench.open("a", sources=("talker->vocoder", "frontend"))
    bench.feed_pages("a", codes)
    bench.end("a", source="frontend")
    bench.settle(bench.device)
    assert not bench.ends
    bench.end("a", source="talker->vocoder")
    bench.settle(bench.device)
    bench.expect_whole("a", codes)


def test_an_input_of_no_frames_is_no_frame() -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    ref = bench.feed_pages("a", random_codes(0))
    bench.end("a")
    bench.settle(bench.device)
    assert bench.ends["a"] == Done("a", "empty", {"frames": 0, "samples": 0})
    assert ref.freed
    assert not bench.held


def test_a_first_chunk_without_samples_gives_no_chunk() -> None:
    bench = Bench(CpuDevice(), WaveMaker(spread=3, lookahead=3), first_chunk_frames=1, chunk_frames=1)
    codes = random_codes(3)
    bench.open("a")
    bench.feed_pages("a", codes)
    bench.end("a")
    bench.settle(bench.device)
    assert [len(chunk) for chunk in bench.chunks("a")] == [3, 3]
    bench.expect_whole("a", codes)


def test_a_model_that_needs_several_frames_to_begin_gets_them() -> None:
    bench = Bench(CpuDevice(), WaveMaker(spread=2, lookahead=5), first_chunk_frames=1, chunk_frames=1)
    codes = random_codes(5)
    bench.open("a", "short")
    bench.feed_pages("a", codes)
    bench.feed_pages("short", codes[:2])
    bench.end("a", "short")
    bench.settle(bench.device)
    bench.expect_whole("a", codes)
    assert bench.model.batches[0] == (1, 3, True)
    assert bench.ends["short"] == Done("short", "empty", {"frames": 0, "samples": 0})
    assert not bench.held


def test_chunks_own_their_samples() -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=1, chunk_frames=1)
    names: Sequence[str] = "ab"
    bench.open(*names)
    for name in names:
        bench.feed_pages(name, random_codes(6, ord(name)))
    bench.end(*names)
    bench.settle(bench.device)
    arrays = [chunk for name in names for chunk in bench.chunks(name)]
    assert len(arrays) == 12
    assert all(array.base is None and array.flags.owndata for array in arrays)


def test_closing_lets_go_of_everything() -> None:
    device = QueuedDevice()
    bench = Bench(device, max_num_seqs=1)
    bench.open("a", "b")
    refs = [bench.feed_pages(name, random_codes(12)) for name in "ab"]
    bench.tick()
    device.synchronize()
    bench.vocoder.close()
    bench.vocoder.close()
    assert all(ref.freed for ref in refs)
    assert not bench.held


@pytest.mark.parametrize("option", ["max_num_seqs", "first_chunk_frames", "chunk_frames"])
def test_options_are_checked(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1"):
        VocoderOptions(**{option: 0})


@pytest.mark.parametrize("phase", ["copy_upload", "reset_rows"])
def test_of_a_batch_that_could_not_be_prepared_nobody_fails(phase: str) -> None:
    device = FaultyDevice()
    bench = Bench(device, first_chunk_frames=3, chunk_frames=2)
    codes = {name: random_codes(7, seed) for seed, name in enumerate("ab")}
    bench.open(*codes)
    for name, own in codes.items():
        bench.feed_pages(name, own)
    bench.end(*codes)
    # The first upload is that of the frames into the rows' rings.
    fault = device.faults.plant(("vocoder", phase), 1 if phase == "copy_upload" else 0, after=False)
    bench.settle(device)
    assert not fault.left
    for name, own in codes.items():
        bench.expect_whole(name, own)
    assert bench.model.batches[0][0] == 1, "each was tried alone"
    assert not bench.held


def test_a_step_that_fails_takes_no_turn_of_the_buffers() -> None:
    """Three steps of one round, each of its own shape: the third must not use the buffers of the first, which is not read yet."""
    device = FaultyDevice()
    bench = Bench(device, first_chunk_frames=3, chunk_frames=2)
    codes = {"long": random_codes(3, 1), "bad": random_codes(2, 2), "short": random_codes(1, 3)}
    bench.open(*codes)
    for name, own in codes.items():
        bench.feed_pages(name, own)
    bench.end(*codes)
    fault = device.faults.plant(("vocoder", "download_samples"), 1, after=True)
    bench.settle(device)
    assert not fault.left
    assert isinstance(bench.ends["bad"], Failed)
    for name in ("long", "short"):
        bench.expect_whole(name, codes[name])
