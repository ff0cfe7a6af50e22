"""The vocoder stage, driven by hand-made messages."""

import logging
import re

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from omni.device.cpu import CpuDevice
from omni.stage import Done, Failed
from omni.testing import LaunchGuard
from omni.testing.faults import FaultyDevice
from omni.testing.simulation.late import QueuedDevice
from omni_vocoder.options import VocoderOptions
from tests.support.devices import WarmingDevice
from tests.support.frame_bench import POISON, feed_at_random, frames, random_codes
from tests.support.wavemaker import Bench, WaveMaker, WaveState, whole_wave


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
    # The last chunk is padded to the size of the others.
    sizes = [frame_count for _, frame_count, _ in bench.model.batches]
    assert sizes == [first] + [later] * -(-(21 - first) // later)
    assert bench.vocoder.counters()["frames"] == 21
    assert not bench.held


def test_the_last_chunk_of_any_size_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    device = CpuDevice()
    bench = Bench(device, first_chunk_frames=2, chunk_frames=5)
    bench.vocoder.capture([4])
    codes = {name: random_codes(length) for name, length in (("a", 10), ("b", 11), ("c", 1))}
    with caplog.at_level(logging.WARNING):
        for name, own in codes.items():
            bench.speak(name, own)
        bench.settle(device)
    for name, own in codes.items():
        bench.expect_whole(name, own)
    assert not caplog.records


def test_graphs_are_captured_the_largest_first_and_replayed() -> None:
    """Smaller ones then reuse the memory of the largest."""
    device = WarmingDevice()
    bench = Bench(device, first_chunk_frames=2, chunk_frames=5)
    bench.vocoder.capture([2, 1])
    frames_and_rows = [tuple(map(int, re.findall(r"\d+", name))) for name in device.captured]
    assert frames_and_rows == [(5, 2), (2, 2), (5, 1), (2, 1)]
    codes = random_codes(9)
    bench.speak("a", codes)
    bench.settle(device)
    assert device.replayed == [device.captured[3], device.captured[2], device.captured[2]]
    bench.expect_whole("a", codes)


@pytest.mark.parametrize("sizes", [[1], [2], [4, 3]])
def test_a_capture_leaves_the_rows_of_requests_alone(sizes: list[int]) -> None:
    bench = Bench(WarmingDevice(), max_num_seqs=4, first_chunk_frames=2, chunk_frames=3)
    codes = {name: random_codes(8, seed) for seed, name in enumerate("abc")}
    bench.open(*codes)
    for name, own in codes.items():
        bench.feed_pages(name, own[:6])
    bench.settle(bench.device)
    bench.vocoder.capture(sizes)
    for name, own in codes.items():
        bench.feed_pages(name, own[6:])
        bench.end(name)
    bench.settle(bench.device)
    for name, own in codes.items():
        bench.expect_whole(name, own)


def test_a_last_chunk_is_padded_with_copies_of_its_last_frame() -> None:
    class Seeing(WaveMaker):
        seen: Tensor

        def decode(self, codes_BNG: Tensor, state: WaveState, rows_B: Tensor, first: bool) -> Tensor:
            self.seen = codes_BNG.clone()
            return super().decode(codes_BNG, state, rows_B, first)

    bench = Bench(CpuDevice(), model := Seeing(), first_chunk_frames=4, chunk_frames=3)
    codes = random_codes(6)
    bench.speak("a", codes)
    bench.settle(bench.device)
    bench.expect_whole("a", codes)
    assert model.seen[0].tolist() == codes[[4, 5, 5]].tolist()


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


@settings(max_examples=40)
@given(data=st.data())
def test_any_arrival_order_batching_and_timing_gives_each_its_own_wave(data: st.DataObject) -> None:
    """Requests, inputs and device progress in any order; more requests than rows; inputs longer than a row's ring."""
    device = QueuedDevice()
    options = {"first_chunk_frames": data.draw(st.integers(1, 4)), "chunk_frames": data.draw(st.integers(1, 4))}
    bench = Bench(device, WaveMaker(lookahead=data.draw(st.integers(0, 5))), max_num_seqs=2, **options)
    codes = {name: random_codes(data.draw(st.integers(1, 24)), seed) for seed, name in enumerate("abcd")}
    bench.open(*codes)
    refs = feed_at_random(bench, "vocoder", codes, data)
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
    assert bench.model.batches == [(4, 2, True), (3, 2, False)]


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


def test_device_memory_is_touched_in_phases_only() -> None:
    device = CpuDevice()
    bench = Bench(device, first_chunk_frames=2, chunk_frames=2)
    codes = random_codes(7)
    bench.speak("a", codes)
    with LaunchGuard(device) as guard:
        bench.settle(device)
    bench.expect_whole("a", codes)
    assert guard.launched == {
        "copy_upload",
        "gather_rows",
        "reset_rows",
        "decode_frames",
        "keep_samples",
        "download_samples",
    }


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


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_a_failing_batch_fails_its_requests_only(raised: type[BaseException]) -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=2, chunk_frames=2)
    bench.model.poisoned = raised
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
        problem = f"stage 'vocoder' failed while decoding a chunk, in phase decode_frames: {raised.__name__}: poisoned"
        assert problem in bench.error(name)
    assert ref.freed
    bench.expect_whole("good", good)
    assert not bench.held
    bench.speak("later", later)
    bench.settle(bench.device)
    bench.expect_whole("later", later)


def test_a_model_with_another_number_of_samples_is_reported() -> None:
    class Short(WaveMaker):
        def samples(self, frames: int, first: bool) -> int:
            return super().samples(frames, first) + 1

    bench = Bench(CpuDevice(), Short())
    bench.speak("a", random_codes(3))
    bench.settle(bench.device)
    assert "decode gave [1, 28], not [1, 29]" in bench.error("a")


def test_a_first_chunk_without_samples_gives_no_chunk() -> None:
    bench = Bench(CpuDevice(), WaveMaker(spread=3, lookahead=3), first_chunk_frames=1, chunk_frames=1)
    codes = random_codes(3)
    bench.speak("a", codes)
    bench.settle(bench.device)
    assert [len(chunk) for chunk in bench.chunks("a")] == [3, 3]
    bench.expect_whole("a", codes)


def test_a_model_that_needs_several_frames_to_begin_gets_them() -> None:
    bench = Bench(CpuDevice(), WaveMaker(spread=2, lookahead=5), first_chunk_frames=1, chunk_frames=1)
    codes = random_codes(5)
    bench.speak("a", codes)
    bench.speak("short", codes[:2])
    bench.settle(bench.device)
    bench.expect_whole("a", codes)
    assert bench.model.batches[0] == (1, 3, True)
    assert bench.ends["short"] == Done("short", "empty", {"frames": 0, "samples": 0})
    assert not bench.held


def test_a_paused_request_decodes_nothing_and_the_others_do() -> None:
    bench = Bench(CpuDevice(), first_chunk_frames=1, chunk_frames=1)
    bench.open("a", "b")
    bench.pause("a")
    codes = random_codes(3)
    for name in "ab":
        bench.feed_pages(name, codes)
        bench.end(name)
    bench.settle(bench.device)
    assert bench.wave("a").size == 0
    assert "a" not in bench.ends
    bench.expect_whole("b", codes)
    bench.resume("a")
    bench.settle(bench.device)
    bench.expect_whole("a", codes)
    assert not bench.held


def test_samples_under_way_at_a_pause_still_arrive() -> None:
    device = QueuedDevice()
    bench = Bench(device, WaveMaker(lookahead=0), first_chunk_frames=1, chunk_frames=1)
    bench.open("a")
    codes = random_codes(2)
    bench.feed_pages("a", codes)
    bench.tick()
    bench.pause("a")
    bench.settle(device)
    np.testing.assert_allclose(bench.wave("a"), whole_wave(bench.model, codes[:1].tolist()), rtol=1e-6)
    bench.abort("a")
    bench.settle(device)
    assert not bench.held


def test_counters_are_totals() -> None:
    bench = Bench(CpuDevice(), WaveMaker(spread=3, lookahead=2), first_chunk_frames=2, chunk_frames=2)
    for name in "ab":
        bench.speak(name, random_codes(4))
    bench.settle(bench.device)
    # Two batches of two requests with two frames; each request loses two samples at its beginning.
    assert bench.vocoder.counters() == {"steps": 2, "frames": 8, "samples": 2 * (4 * 3 - 2), "retries": 0}


@pytest.mark.parametrize("option", ["max_num_seqs", "first_chunk_frames", "chunk_frames"])
def test_options_are_checked(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1"):
        msgspec.structs.replace(VocoderOptions(), **{option: 0})


@pytest.mark.plants_faults
@pytest.mark.parametrize("phase", ["copy_upload", "reset_rows"])
def test_a_batch_that_could_not_be_prepared_fails_no_request(phase: str) -> None:
    device = FaultyDevice()
    bench = Bench(device, first_chunk_frames=3, chunk_frames=2)
    codes = {name: random_codes(7, seed) for seed, name in enumerate("ab")}
    for name, own in codes.items():
        bench.speak(name, own)
    # The first upload is that of the frames into the rows' rings.
    fault = device.faults.plant(("vocoder", phase), 1 if phase == "copy_upload" else 0, after=False)
    bench.settle(device)
    assert not fault.left
    for name, own in codes.items():
        bench.expect_whole(name, own)
    assert bench.model.batches[0][0] == 1, "each was tried alone"
    assert bench.vocoder.counters()["retries"] == 1
    assert not bench.held


def test_a_step_that_fails_takes_no_turn_of_the_buffers() -> None:
    """Three steps of one round, each of a request alone: the third must not use the buffers of the first, which is not read yet."""
    device = FaultyDevice()
    bench = Bench(device, first_chunk_frames=3, chunk_frames=2)
    codes = {"long": random_codes(3, 1), "bad": random_codes(2, 2), "short": random_codes(1, 3)}
    bench.open(*codes)
    bench.tick()
    for name, own in codes.items():
        bench.vocoder.requests[name].isolated = True
        bench.feed_pages(name, own)
        bench.end(name)
    fault = device.faults.plant(("vocoder", "download_samples"), 1, after=True)
    bench.settle(device)
    assert not fault.left
    assert isinstance(bench.ends["bad"], Failed)
    for name in ("long", "short"):
        bench.expect_whole(name, codes[name])
