"""Voices, noise and frames as they arrive at the diffusion stage."""

import numpy as np
import pytest
import torch

from omni.device.cpu import CpuDevice
from omni.payload import AudioChunk, PageSlice, Payload
from omni.stage import Done
from omni.testing import LaunchGuard
from omni_diffusion.inputs import Voice
from omni_frames.request import CodeFrames
from tests.support.frame_bench import random_codes
from tests.support.painter import BLOCK, VOICES, WIDTH, Bench, noise_of

SMALL = {"first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1}


def test_codes_that_the_host_knows_are_uploaded() -> None:
    """Those of several requests at once, in whatever parts they come."""
    bench = Bench(CpuDevice(), max_num_seqs=2)
    asked = {name: random_codes(count, seed) for seed, (name, count) in enumerate({"a": 17, "b": 9, "c": 21}.items())}
    bench.open(*asked)
    for name, codes in asked.items():
        bench.give_voice(name, 1, noise_of(name, len(codes)))
        for part in np.array_split(codes, 4):
            bench.feed_host(name, Payload(CodeFrames(count=len(part), codes=part)))
        bench.end(name)
    with LaunchGuard(bench.device) as guard:
        bench.settle(bench.device)
    assert "copy_rows" in guard.launched
    for name, codes in asked.items():
        bench.expect(name, codes)
    assert not bench.held


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (Payload(AudioChunk(samples=np.empty(0, np.float32), sample_rate=1)), "CodeFrames"),
        (Payload(Voice(index=VOICES)), "voice 4 is out of range, 0 to 3"),
        (Payload(Voice(index=-1)), "voice -1 is out of range"),
        (Payload(Voice(index=0), {"noise": torch.zeros(4, 2).double()}), "wanted float32 [latent frames, 2]"),
        (Payload(Voice(index=0), {"noise": torch.zeros(4, 3)}), "wanted float32 [latent frames, 2]"),
        (Payload(Voice(index=0), {"noise": torch.zeros(4, 2, 1)}), "wanted float32 [latent frames, 2]"),
        (Payload(Voice(index=0), {"noise": torch.zeros(4, 2, device="meta")}), "read by the host"),
        (
            Payload(Voice(index=0), {"noise": PageSlice(torch.zeros(1, 1, 2), np.zeros(1, np.int64))}),
            "read by the host",
        ),
    ],
)
def test_a_wrong_voice_fails_the_request_and_is_released(payload: Payload, problem: str) -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    ref = bench.feed("a", payload)
    bench.settle(bench.device)
    assert problem in bench.error("a")
    assert ref.freed
    assert not bench.held


class Unwritten:
    """The event of work that does not end."""

    def done(self) -> bool:
        return False


def test_noise_that_is_still_being_written_is_refused() -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    bench.feed("a", Payload(Voice(index=0), {"noise": torch.zeros(4, WIDTH)}), ready=Unwritten())
    bench.settle(bench.device)
    assert "noise is read by the host" in bench.error("a")
    assert not bench.held


def test_the_ring_of_a_row_holds_two_windows() -> None:
    """Frames that wait there free the producer's memory."""
    bench = Bench(CpuDevice(), **SMALL)
    fits = 2 * (1 + 2 + 1) * BLOCK
    bench.open("a")
    bench.give_voice("a", 0)
    bench.pause("a")
    first = bench.feed_pages("a", random_codes(fits))
    second = bench.feed_pages("a", random_codes(1))
    bench.settle(bench.device)
    assert bench.held["frames"] == fits
    assert first.freed
    assert not second.freed


def test_a_second_voice_and_none_are_refused() -> None:
    bench = Bench(CpuDevice())
    bench.open("two", "none", "silent")
    bench.give_voice("two", 0)
    bench.give_voice("two", 1)
    bench.feed_pages("none", random_codes(2))
    bench.end("none", "silent")
    bench.settle(bench.device)
    for name, problem in (("two", "a second Voice arrived"), ("none", "frames arrived without a Voice")):
        assert problem in bench.error(name)
    assert bench.ends["silent"] == Done("silent", "empty", {"frames": 0, "samples": 0})
    assert not bench.held


@pytest.mark.plants_faults
def test_noise_for_fewer_frames_than_come_fails_that_request_only() -> None:
    bench = Bench(CpuDevice(), **SMALL)
    codes = random_codes(8)
    bench.speak("short", codes, noise=noise_of("short", 7))
    bench.speak("good", codes)
    bench.settle(bench.device)
    assert "noise is for 14 latent frames, the codes are for 16 or more" in bench.error("short")
    bench.expect("good", codes)
    assert not bench.held
