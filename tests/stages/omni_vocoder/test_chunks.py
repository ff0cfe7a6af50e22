"""Sizes of chunks by the slack of a listener, and which chunks are decoded first."""

import logging
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from omni.device.cpu import CpuDevice
from omni.stage import Listeners
from omni.testing.simulation.late import QueuedDevice
from omni.timeline import watched
from omni_vocoder.chunks import ChunkShape, ChunkSizes
from omni_vocoder.options import VocoderOptions
from omni_vocoder.worker import VocoderRequest
from tests.support.frame_bench import random_codes
from tests.support.wavemaker import Bench, WaveMaker

FRAME = 0.08
"""Seconds of sound of one frame here."""


def sizes(first: int, most: int) -> ChunkSizes:
    options = msgspec.structs.replace(VocoderOptions(), first_chunk_frames=first, chunk_frames=most)
    grown = ChunkSizes.of(options, WaveMaker(), grow=True)
    return ChunkSizes(grown.first, grown.later, grown.fewest, FRAME)


@pytest.mark.parametrize(
    ("first", "most", "later"),
    [
        (4, 25, (4, 10, 25)),
        (4, 12, (4, 12)),
        (2, 8, (2, 5, 8)),
        (10, 25, (10, 25)),
        (1, 25, (1, 2, 5, 12, 25)),
        (25, 25, (25,)),
        (10, 4, (4,)),
    ],
)
def test_sizes_grow_from_the_first_to_the_most(first: int, most: int, later: Sequence[int]) -> None:
    assert sizes(first, most).later == later
    assert ChunkSizes.of(msgspec.structs.replace(VocoderOptions(), chunk_frames=most), WaveMaker()).later == (most,)


def later(buffered: int, slack: float, *, ended: bool = False) -> int | None:
    """Frames of a later chunk, of 4, 10 or 25; None while more are waited for."""
    request = VocoderRequest("a", set() if ended else {"talker"}, done=4, buffered=buffered)
    chunk = sizes(4, 25).next_chunk(request, slack)
    return chunk.frames if chunk is not None else None


@pytest.mark.parametrize(
    ("buffered", "slack", "frames"),
    [
        (3, 0.01, None),  # there is no smaller chunk
        (4, 0.01, 4),
        (4, 0.23, 4),  # six more frames take up to 0.24 s
        (4, 0.25, None),
        (9, 0.05, None),
        (9, 0.03, 4),
        (10, 0.05, 10),
        (10, 0.65, None),
        (24, 0.05, None),
        (25, 0.0, 25),
        (12, -1.0, 10),
        (60, -1.0, 25),
        (24, math.inf, None),
        (25, math.inf, 25),
    ],
)
def test_a_longer_chunk_is_waited_for_while_slack_lasts(buffered: int, slack: float, frames: int | None) -> None:
    assert later(buffered, slack) == frames


def test_a_last_chunk_waits_for_nothing() -> None:
    for slack in (-1.0, 0.5, math.inf):
        for buffered in (1, 3, 24):
            assert later(buffered, slack, ended=True) is not None
    assert later(0, 0.5, ended=True) is None


def test_a_first_chunk_has_one_size_at_any_slack() -> None:
    for slack in (0.0, 5.0, math.inf):
        request = VocoderRequest("a", {"talker"}, buffered=4)
        assert sizes(4, 25).next_chunk(request, slack) == ChunkShape(4, True)


class ListeningBench(Bench):
    """A vocoder with listeners of its sound. A frame is 0.125 s of sound. now: of the clock, in seconds."""

    def __init__(self, device: CpuDevice | QueuedDevice, **options: int) -> None:
        self.now = 0.0
        self.listeners = Listeners(lambda: self.now)
        model = WaveMaker(lookahead=0)
        model.sample_rate = 8 * model.spread
        super().__init__(device, model, self.listeners, **options)

    def hear(self, request_id: str, frames: int) -> None:
        self.listeners.add_sound(request_id, frames / 8)


def test_chunks_grow_with_the_sound_ahead_and_make_the_whole_wave() -> None:
    bench, codes = ListeningBench(CpuDevice(), first_chunk_frames=2, chunk_frames=16), random_codes(60)
    bench.listeners.join("a")
    bench.open("a")
    for frame in codes:
        before = bench.vocoder.counters()["frames"]
        bench.feed_pages("a", frame[None])
        bench.tick()
        bench.hear("a", bench.vocoder.counters()["frames"] - before)
        bench.now += 0.02  # six times as fast as it is played
    bench.end("a")
    bench.settle(bench.device)
    bench.expect_whole("a", codes)
    frames = [count for _, count, _ in bench.model.batches]
    assert frames[:2] == [2, 5]
    assert sorted(frames) == frames
    assert 16 in frames


def test_chunks_stay_small_where_frames_come_no_faster_than_played() -> None:
    bench, codes = ListeningBench(CpuDevice(), first_chunk_frames=2, chunk_frames=16), random_codes(40)
    bench.listeners.join("a")
    bench.open("a")
    for frame in codes:
        before = bench.vocoder.counters()["frames"]
        bench.feed_pages("a", frame[None])
        bench.tick()
        bench.hear("a", bench.vocoder.counters()["frames"] - before)
        bench.now += 0.12
    bench.end("a")
    bench.settle(bench.device)
    bench.expect_whole("a", codes)
    assert {count for _, count, _ in bench.model.batches} == {2}
    assert bench.listeners.underruns == 0


def test_every_size_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    bench, codes = ListeningBench(CpuDevice(), first_chunk_frames=2, chunk_frames=16), random_codes(60)
    bench.vocoder.capture([4, 2])
    bench.listeners.join("a")
    with caplog.at_level(logging.WARNING):
        for slack in (0.0, 1.0, 9.0):
            bench.hear("a", round(8 * slack))
            bench.open("a")
            bench.feed_pages("a", codes)
            bench.settle(bench.device)
            bench.abort("a")
            bench.settle(bench.device)
    assert not caplog.records


def streams(bench: ListeningBench, slacks: dict[str, float]) -> None:
    """Streams that have given a first chunk, and more since: each of them has so much slack, and a chunk that is ready."""
    bench.open(*slacks)
    for name in slacks:
        bench.feed_pages(name, random_codes(1))
    bench.settle(bench.device)
    bench.model.batches.clear()
    for name, slack in slacks.items():
        bench.listeners.join(name)
        bench.listeners.add_sound(name, slack)


def decoded(bench: ListeningBench) -> list[str]:
    """The next two requests that are decoded alone."""
    bench.tick()
    return [request.id for batch in bench.vocoder._in_flight for request in batch.requests]


def test_a_stream_about_to_run_dry_comes_first_then_a_first_chunk() -> None:
    bench = ListeningBench(QueuedDevice(), first_chunk_frames=1, chunk_frames=8)
    streams(bench, {"plenty": 9.0, "dry": 0.05})
    bench.open("new")
    bench.feed_pages("plenty", random_codes(8))
    bench.feed_pages("new", random_codes(1))
    bench.feed_pages("dry", random_codes(1))
    assert decoded(bench) == ["dry", "new"]


def test_a_timeline_has_the_slack_at_which_chunks_were_decoded() -> None:
    bench = ListeningBench(CpuDevice(), first_chunk_frames=1, chunk_frames=8)
    with watched(bench.device) as timeline:
        timeline.start()
        streams(bench, {"dry": 0.05, "drier": -0.5})
        for name in ("dry", "drier", "unheard"):
            if name == "unheard":
                bench.open(name)
            bench.feed_pages(name, random_codes(1))
        bench.settle(bench.device)
        bench.feed_pages("unheard", random_codes(8))
        bench.settle(bench.device)
        spans = [dict(span.numbers) for span in timeline.stop().host if span.name == "decode_chunks"]
    assert spans == [
        {"rows": 2, "frames": 1, "first": 1},
        {"rows": 2, "frames": 1, "first": 0, "slack_ms": -500},
        {"rows": 1, "frames": 1, "first": 1},
        {"rows": 1, "frames": 8, "first": 0},
    ]


def test_every_chunk_is_decoded_in_the_end() -> None:
    bench = ListeningBench(QueuedDevice(), first_chunk_frames=1, chunk_frames=8)
    streams(bench, {"patient": 100.0, "dry": 0.01})
    patient = bench.vocoder.requests["patient"]
    bench.feed_pages("patient", random_codes(8))
    for _ in range(30):
        bench.feed_pages("dry", random_codes(1))
        bench.settle(bench.device)
        if patient.done > 1:
            break
    assert patient.done == 9
    patient.passed = 8
    bench.feed_pages("patient", random_codes(8))
    bench.feed_pages("dry", random_codes(1))
    assert decoded(bench)[0] == "patient"


def batches(bench: ListeningBench) -> list[set[str]]:
    """The requests of each batch that the next tick launches."""
    before = len(bench.vocoder._in_flight)
    bench.tick()
    return [{request.id for request in batch.requests} for batch in [*bench.vocoder._in_flight][before:]]


def test_chunks_with_plenty_of_slack_wait_for_those_of_other_streams() -> None:
    bench = ListeningBench(QueuedDevice(), first_chunk_frames=1, chunk_frames=8)
    streams(bench, {"a": 9.0, "b": 9.0})
    bench.feed_pages("a", random_codes(8))
    bench.feed_pages("b", random_codes(7))
    assert batches(bench) == []
    bench.feed_pages("b", random_codes(1))
    assert batches(bench) == [{"a", "b"}]


@pytest.mark.parametrize("end", ["slack", "frames", "its own end", "another's end", "another's pause", "no listener"])
def test_a_chunk_waits_no_longer_than_it_may(end: str) -> None:
    bench = ListeningBench(QueuedDevice(), first_chunk_frames=1, chunk_frames=8)
    streams(bench, {"a": 9.0, "b": 9.0})
    bench.feed_pages("a", random_codes(8))
    bench.feed_pages("b", random_codes(4))
    assert batches(bench) == []
    match end:
        case "slack":
            bench.now += 7.9
            assert batches(bench) == []
            bench.now += 0.2
        case "frames":
            bench.feed_pages("a", random_codes(7))
            assert batches(bench) == []
            bench.feed_pages("a", random_codes(1))
        case "its own end":
            bench.end("a")
        case "another's end":
            bench.end("b")
        case "another's pause":
            bench.vocoder.requests["b"].paused = True
        case "no listener":
            bench.listeners.leave("a")
    assert batches(bench)[0] >= {"a"}


def test_a_stream_alone_waits_for_nobody() -> None:
    bench = ListeningBench(QueuedDevice(), first_chunk_frames=1, chunk_frames=8)
    streams(bench, {"a": 9.0})
    bench.open("new")  # whose first chunk is no reason to wait
    bench.feed_pages("a", random_codes(8))
    assert batches(bench) == [{"a"}]


def test_without_listeners_chunks_are_as_long_as_they_may_be() -> None:
    bench, codes = Bench(CpuDevice(), WaveMaker(lookahead=0), first_chunk_frames=2, chunk_frames=8), random_codes(20)
    bench.speak("a", codes)
    bench.settle(bench.device)
    assert [count for _, count, _ in bench.model.batches] == [2, 8, 8, 8]
    np.testing.assert_array_equal(len(bench.wave("a")), 20 * bench.model.spread)
