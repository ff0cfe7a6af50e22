"""Mixed traffic for a long time: no error, every stream complete, memory flat, and nothing held in the end.

`OMNI_SOAK_SECONDS` says how long, half an hour by default; `OMNI_SOAK_SUMMARY` names a file for a summary in JSON.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from omni import AsyncOmni, Output, StageError
from tests.support.pressure import few_blocks, overrides
from tests.support.reference import tiny_checkpoint
from tests.support.resources import open_files, records, resident_bytes, threads
from tests.support.tiny_omni import SHAPE, assert_freed, lengths, picture, sound, tiny_plugins, user

pytestmark = pytest.mark.thorough

# Mixed traffic through the public interface for as long as is wanted, and what it did.

QUESTIONS = ("where is it", "what is that", "how many are there", "who said so", "go on", "and then", "the red circle")
SOUNDS_SECONDS = (0.2, 0.5, 0.8)
"""Of a sound. Few lengths: libraries below keep what they prepared for each shape, up to a thousand of them."""


@dataclass(slots=True)
class Record:
    """What the traffic did. resident: bytes, sampled evenly. problems: what should not have happened."""

    requests: Counter[str] = field(default_factory=Counter)
    audio_seconds: float = 0.0
    resident: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Traffic:
    """Callers that ask, read, wait, go on and leave, each by itself. samples_per_frame, samples_less: of a whole utterance:
    `frames * samples_per_frame - samples_less` samples."""

    def __init__(self, omni: AsyncOmni, seconds: float, seed: int, samples_per_frame: int, samples_less: int) -> None:
        self.record = Record()
        self._omni = omni
        self._chance = random.Random(seed)
        self._start = time.monotonic()
        self._seconds = seconds
        self._samples_per_frame = samples_per_frame
        self._samples_less = samples_less

    async def run(self, callers: int, samples: int) -> Record:
        """samples: of resident memory, spread over the time."""
        watch = asyncio.create_task(self._watch(samples))
        await asyncio.gather(*(self._caller() for _ in range(callers)))
        await watch
        return self.record

    @property
    def _over(self) -> bool:
        return time.monotonic() - self._start > self._seconds

    async def _watch(self, samples: int) -> None:
        for number in range(samples):
            await asyncio.sleep(max(0.0, self._start + number * self._seconds / samples - time.monotonic()))
            self.record.resident.append(resident_bytes())

    async def _caller(self) -> None:
        while not self._over:
            await self._conversation()
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def _conversation(self) -> None:
        """One to four turns of a chat, each with what was said before."""
        chance = self._chance
        chat: list[dict[str, Any]] = []
        salt = chance.choice(("", "", "mine"))
        for _ in range(chance.choice((1, 1, 2, 4))):
            chat += user(*self._parts(), chance.choice(QUESTIONS))
            answer = await self._ask(chat, salt)
            if answer is None:
                return
            chat.append({"role": "assistant", "content": answer or "nothing"})

    def _parts(self) -> list[dict[str, Any]]:
        """Media: some that came before, some new."""
        chance, parts = self._chance, []
        if chance.random() < 0.4:
            parts.append(picture(chance.choice((chance.randrange(8), chance.randrange(10**6)))))
        if chance.random() < 0.4:
            parts.append(
                sound(chance.choice((chance.randrange(8), chance.randrange(10**6))), chance.choice(SOUNDS_SECONDS))
            )
        return parts

    async def _ask(self, chat: list[dict[str, Any]], salt: str) -> str | None:
        """The answer's text, or None for a request that was given up."""
        chance = self._chance
        speaks = chance.random() < 0.6
        stream = self._omni.generate(
            chat,
            modalities=("text", "audio") if speaks else ("text",),
            sampling=lengths(chance.randint(2, 40), chance.randint(4, 60), chance.randrange(10**6), temperature=0.8),
            priority=chance.randrange(3),
            cache_salt=salt,
        )
        patience = chance.randrange(12) if chance.random() < 0.2 else None
        pause = chance.uniform(0.02, 0.2) if chance.random() < 0.15 else 0.0
        outputs: list[Output] = []
        async with stream:
            try:
                async for output in stream:
                    outputs.append(output)
                    if pause:
                        await asyncio.sleep(pause)
                    if patience is not None and len(outputs) > patience:
                        self.record.requests["given up"] += 1
                        return None
            except StageError as error:
                self.record.problems.append(str(error))
                return None
        self._check(outputs, speaks)
        self.record.requests["spoken" if speaks else "written"] += 1
        self.record.requests["read slowly"] += pause > 0
        return "".join(output.text for output in outputs)

    def _check(self, outputs: list[Output], speaks: bool) -> None:
        """Every frame that the talker made has become sound, and all of that has come."""
        metrics = outputs[-1].metrics
        assert metrics is not None
        stages = metrics.stages
        given = sum(len(output.audio) for output in outputs if output.audio is not None)
        frames = stages["talker"].counts.get("frames", 0) if speaks else 0
        expected = max(frames * self._samples_per_frame - self._samples_less, 0)
        heard = stages["code2wav"].counts["frames"] if speaks else 0
        if given != expected or heard != frames:
            self.record.problems.append(f"{frames} frames, {heard} heard, {given} samples where {expected} were due")
        self.record.audio_seconds += metrics.audio_seconds


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
