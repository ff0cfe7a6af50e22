"""What stages have in common that read code frames and give samples, on one that does little else."""

import numpy as np
import pytest
import torch

from omni.device.cpu import CpuDevice
from omni.payload import AudioChunk, PageSlice, Payload
from omni.stage import Done
from omni.testing.faults import FaultyDevice
from omni.testing.simulation.late import QueuedDevice
from omni_frames.request import CodeFrames
from tests.stages.omni_frames.adder import Bench
from tests.support.frame_bench import POISON, frames, random_codes


def test_nothing_is_read_before_it_is_ready_and_leases_end_after_the_copy() -> None:
    device = QueuedDevice()
    bench = Bench(device)
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
    assert [ref.freed for ref in (first, second)] == [False, False]
    device.run({"adder"}, operations=4)  # the upload, its event, the gather, its event
    assert [ref.freed for ref in (first, second)] == [True, False]
    bench.pages[:] = POISON  # the talker may write there again; the second half is not written yet
    device.run({"adder"})
    bench.tick()
    assert not bench.produced  # decoded, but not on the host
    device.run({"adder-copy"})
    bench.tick()
    assert len(bench.chunks("a")) == 1
    assert not second.freed
    bench.settle(device)
    bench.expect_sums("a", codes)


@pytest.mark.parametrize("moment", range(24))
def test_an_abort_at_any_moment_frees_everything_and_harms_no_other(moment: int) -> None:
    device = QueuedDevice()
    bench = Bench(device, rows=2)
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
    bench.abort("a")
    heard = bench.wave("a")
    bench.settle(device)
    assert np.array_equal(bench.wave("a"), heard)
    for name in "bc":
        bench.expect_sums(name, codes[name])
    assert all(ref.freed for ref in refs)
    assert not bench.held
    assert not device.pending


def test_a_copy_that_fails_fails_its_request_only() -> None:
    bench = Bench(CpuDevice())
    codes = random_codes(3)
    bench.open("bad", "good")
    ref = bench.feed("bad", frames(PageSlice(torch.zeros((1, 4, 2), dtype=torch.int64), np.array([0, 10**6]))))
    bench.feed_pages("good", codes)
    bench.end("bad", "good")
    bench.settle(bench.device)
    assert "while taking its frames, in phase gather_rows" in bench.error("bad")
    assert ref.freed
    bench.expect_sums("good", codes)
    assert not bench.held


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (Payload(CodeFrames(count=1)), "CodeFrames with a tensor 'codes'"),
        (
            Payload(CodeFrames(count=1), {"other": torch.zeros((1, 2), dtype=torch.int64)}),
            "CodeFrames with a tensor 'codes'",
        ),
        (
            Payload(AudioChunk(samples=np.empty(0, np.float32), sample_rate=1), {"codes": torch.zeros(1, 2)}),
            "CodeFrames",
        ),
        (frames(torch.zeros((1, 2), dtype=torch.int32)), "wanted 1 int64 frames of 2 code groups"),
        (Payload(CodeFrames(count=1, codes=np.zeros((1, 3), np.int64))), "wanted 1 int64 frames of 2 code groups"),
        (Payload(CodeFrames(count=1, codes=np.zeros((1, 2), np.int32))), "int32"),
        (Payload(CodeFrames(count=1), {"codes": torch.tensor(1)}), "codes are int64 []"),
        (frames(torch.zeros((1, 3), dtype=torch.int64)), "codes are int64 [1, 3]; wanted"),
        (
            Payload(CodeFrames(count=2), {"codes": torch.zeros((1, 2), dtype=torch.int64)}),
            "codes are int64 [1, 2]; wanted 2",
        ),
    ],
)
def test_a_wrong_input_fails_the_request_and_is_released(payload: Payload, problem: str) -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    ref = bench.feed("a", payload)
    bench.settle(bench.device)
    assert problem in bench.error("a")
    assert ref.freed
    assert not bench.held


def test_every_source_must_end() -> None:
    bench = Bench(CpuDevice())
    codes = random_codes(3)
    bench.open("a", sources=("talker->adder", "frontend"))
    bench.feed_pages("a", codes)
    bench.end("a", source="frontend")
    bench.settle(bench.device)
    assert not bench.ends
    bench.end("a", source="talker->adder")
    bench.settle(bench.device)
    bench.expect_sums("a", codes)


def test_an_input_of_no_frames_is_no_frame() -> None:
    bench = Bench(CpuDevice())
    ref = bench.speak("a", random_codes(0))
    bench.settle(bench.device)
    assert bench.ends["a"] == Done("a", "empty", {"frames": 0, "samples": 0})
    assert ref.freed
    assert not bench.held


def test_chunks_own_their_samples() -> None:
    bench = Bench(CpuDevice())
    for name in "ab":
        bench.speak(name, random_codes(6, ord(name)))
    bench.settle(bench.device)
    arrays = [chunk for name in "ab" for chunk in bench.chunks(name)]
    assert len(arrays) == 6
    assert all(array.base is None and array.flags.owndata for array in arrays)


@pytest.mark.plants_faults
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("phase", ["add_codes", "download_samples"])
def test_of_a_batch_that_fails_each_is_tried_again(phase: str, after: bool) -> None:
    device = FaultyDevice()
    bench = Bench(device)
    codes = {name: random_codes(7, seed) for seed, name in enumerate("ab")}
    for name, own in codes.items():
        bench.speak(name, own)
    fault = device.faults.plant(("adder", phase), 0, after=after)
    bench.settle(device)
    assert not fault.left
    for name, own in codes.items():
        bench.expect_sums(name, own)
    # Two frames of each by itself, and the others together.
    assert bench.adder.counters() == {"steps": 5, "frames": 14, "samples": 14, "retries": 1}
    assert not bench.held


def test_closing_releases_everything() -> None:
    device = QueuedDevice()
    bench = Bench(device, rows=1)
    bench.open("a", "b")
    refs = [bench.feed_pages(name, random_codes(12)) for name in "ab"]
    bench.tick()
    device.synchronize()
    bench.adder.close()
    bench.adder.close()
    assert all(ref.freed for ref in refs)
    assert not bench.held
