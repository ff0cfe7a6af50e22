"""Mixed traffic for a long time: no error, every stream complete, memory flat, and nothing held in the end.

`OMNI_SOAK_SECONDS` says how long, half an hour by default; `OMNI_SOAK_SUMMARY` names a file for a summary in JSON.
"""

import asyncio
import json
import os
import statistics
import time
from pathlib import Path

import pytest

from omni import AsyncOmni
from support.leaks import open_files, records, threads
from support.pressure import few_blocks, overrides
from support.reference import tiny_checkpoint
from support.soak import Record, Traffic
from support.tiny_omni import SHAPE, assert_freed, lengths, tiny_plugins

SECONDS = float(os.environ.get("OMNI_SOAK_SECONDS", "1800"))
CALLERS = 14
SAMPLES = 60
WARM = SAMPLES // 3
"""Samples of resident memory that are not looked at: pools fill, allocators settle."""

GROWTH = 0.02
"""Of resident memory, from the first third after that to the last."""

SETTINGS = overrides(
    few_blocks(100, 80),
    {
        "thinker.max_num_batched_tokens": 32,
        "talker.max_num_seqs": 6,
        "code2wav.max_num_seqs": 3,
        "code2wav.first_chunk_frames": 3,
        "code2wav.chunk_frames": 8,
        "audio_encoder.cache_bytes": 1 << 16,
        "vision_encoder.cache_bytes": 1 << 16,
        "engine.max_active_requests": 12,
    },
)


@pytest.mark.slow
def test_soak() -> None:
    record = asyncio.run(soak())
    assert record.problems == []
    assert min(record.requests[what] for what in ("spoken", "written", "given up", "read slowly")) > 0
    later = record.resident[WARM:]
    third = len(later) // 3
    first, last = statistics.median(later[:third]), statistics.median(later[-third:])
    assert last <= first * (1 + GROWTH), f"resident memory grew from {first} to {last} bytes"


async def soak() -> Record:
    async with await asyncio.to_thread(open_omni) as omni:
        per_frame, less = await samples_of_frames(omni)
        await Traffic(omni, 5, 1, per_frame, less).run(CALLERS, 2)
        await asyncio.to_thread(assert_freed, omni)
        before = (threads(), open_files())
        start = time.monotonic()
        record = await Traffic(omni, SECONDS, 2, per_frame, less).run(CALLERS, SAMPLES)
        seconds = time.monotonic() - start
        await asyncio.to_thread(assert_freed, omni)
        assert threads() <= before[0]
        assert open_files() <= before[1]
        assert records()["pinned slots"] == 0
        counters = {stage: dict(counts) for stage, counts in omni.counters().items()}
        write_summary(record, seconds, counters)
        for stage in ("thinker", "talker"):
            for what in ("preemptions", "cached_tokens", "evicted_blocks"):
                assert counters[stage][what] > 0
        return record


async def samples_of_frames(omni: AsyncOmni) -> tuple[int, int]:
    """Samples that a frame adds, and by how many the sound of n frames is shorter than n of that."""
    waves = [(await omni.complete("hello", sampling=lengths(9, frames))).audio for frames in (12, 13, 21)]
    one, two, three = (0 if wave is None else len(wave) for wave in waves)
    per_frame = two - one
    assert three - two == 8 * per_frame > 0
    return per_frame, 12 * per_frame - one


def write_summary(record: Record, seconds: float, counters: dict[str, dict[str, int]]) -> None:
    file = os.environ.get("OMNI_SOAK_SUMMARY")
    if file:
        summary = {
            "seconds": round(seconds, 1),
            "requests": dict(record.requests),
            "audio_seconds": round(record.audio_seconds, 1),
            "problems": record.problems,
            "resident_megabytes": [round(size / 1e6, 1) for size in record.resident],
            "counters": counters,
        }
        Path(file).write_text(json.dumps(summary, indent=1) + "\n")


def open_omni() -> AsyncOmni:
    return AsyncOmni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins(), overrides=SETTINGS)
