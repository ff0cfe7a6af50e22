"""Requests that are aborted at random moments leave no memory held, and do not change the results of others.

The slow case is a soak: resident memory stays flat, though media and salts are new again and again.
"""

import asyncio
import gc
import random
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from omni import AsyncOmni, Result
from tests.support.pressure import few_blocks, overrides
from tests.support.reference import tiny_checkpoint
from tests.support.resources import open_files, records, resident_bytes, threads
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import SHAPE, assert_freed, assert_like, lengths, picture, sound, tiny_plugins, user

pytestmark = pytest.mark.thorough

SETTINGS = overrides(
    few_blocks(16, 20),
    {
        "thinker.max_num_batched_tokens": 16,
        "thinker.max_num_seqs": 12,
        "talker.max_num_seqs": 8,
        "code2wav.max_num_seqs": 3,
        "code2wav.first_chunk_frames": 2,
        "code2wav.chunk_frames": 3,
        "audio_encoder.cache_bytes": 1 << 16,
        "vision_encoder.cache_bytes": 1 << 16,
        "engine.max_active_requests": 16,
    },
)
CHATS = [
    user("where is it"),
    user(sound(4, 0.4), "what was that"),
    user(picture(5), "how many are there"),
    user(picture(6), sound(6, 0.7), "who said so"),
    user("the red circle and the blue square are down"),
]
LENGTHS = lengths(12, 20)
TEXT: tuple[str, ...] = ("text",)
SPEECH: tuple[str, ...] = ("text", "audio")
MOMENTS = ("at once", "soon", "in the text", "in the speech", "at the end", "after the end")
CALLERS = 40
"""Requests under way at once: more than are let in."""

LEFT_OVER = 8
"""Records of requests that are over which queues and caches may still name."""
SAMPLES = 60
"""Of resident memory, in a soak. A third of it is before pools are full and allocators settle."""
GROWTH = 0.02
"""Of resident memory, from the second third to the last."""


class Storm:
    """requests: number; a twentieth of them stays to the end."""

    def __init__(
        self, omni: AsyncOmni, requests: int, seed: int, alone: Mapping[tuple[int, tuple[str, ...]], Result]
    ) -> None:
        self.reached = Counter[str]()
        self.resident: list[int] = []
        self._omni = omni
        self._alone = alone
        self._chance = random.Random(seed)
        self._gate = asyncio.Semaphore(CALLERS)
        self._requests = requests

    async def run(self) -> None:
        await asyncio.gather(*(self._one(number) for number in range(self._requests)))

    async def _one(self, number: int) -> None:
        chance = self._chance
        chat, modalities = chance.randrange(len(CHATS)), chance.choice((TEXT, SPEECH))
        async with self._gate:
            if number % max(1, self._requests // SAMPLES) == 0:
                self.resident.append(resident_bytes())
            if number % 20 == 10:
                await self._stays(chat, modalities)
            else:
                await self._leaves(chat, modalities, chance.choice(MOMENTS))

    async def _stays(self, chat: int, modalities: tuple[str, ...]) -> None:
        result = await self._omni.complete(CHATS[chat], sampling=LENGTHS, modalities=modalities)
        assert_same(result, self._alone[chat, modalities])
        self.reached["undisturbed"] += 1

    async def _leaves(self, chat: int, modalities: tuple[str, ...], moment: str) -> None:
        """Of every other one the media are new, and the salt is its own."""
        chance, messages, salt = self._chance, CHATS[chat], ""
        if chance.random() < 0.5:
            number = chance.randrange(10**6)
            messages, salt = (
                user(picture(number), sound(number, 0.2), f"what is it {number}"),
                chance.choice(("", "mine")),
            )
        stream = self._omni.generate(
            messages,
            sampling=LENGTHS,
            modalities=SPEECH if moment == "in the speech" else modalities,
            priority=chance.randrange(3),
            cache_salt=salt,
        )
        async with stream:
            await self._wait_for(stream, moment)

    async def _wait_for(self, stream: Any, moment: str) -> None:
        """Reads up to the moment; a request that ends before has lived through "after the end"."""
        if moment == "at once":
            self.reached[moment] += 1
            return
        if moment == "soon":
            await asyncio.sleep(self._chance.uniform(0, 0.3))
            self.reached[moment] += 1
            return
        patience, pause = self._chance.randrange(6), self._chance.choice((0.0, 0.0, 0.05))
        async for output in stream:
            assert output.error is None
            await asyncio.sleep(pause)
            in_it = {
                "in the text": bool(output.text),
                "in the speech": output.audio is not None,
                "at the end": bool(output.finish_reasons) and not output.finished,
                "after the end": False,
            }[moment]
            if in_it and patience == 0:
                self.reached[moment] += 1
                return
            patience -= in_it
        self.reached["after the end"] += 1


def assert_same(result: Result, expected: Result) -> None:
    assert (result.text, result.usage, result.finish_reasons) == (
        expected.text,
        expected.usage,
        expected.finish_reasons,
    )
    if expected.audio is None:
        assert result.audio is None
    else:
        assert_like(result.audio, expected.audio)


def held_by_process() -> dict[str, int]:
    gc.collect()
    return {"threads": threads(), "open files": open_files()}


def assert_no_more(before: dict[str, int]) -> None:
    """What other tests have left may go meanwhile."""
    after = held_by_process()
    assert all(after[kind] <= before[kind] for kind in before), f"{after}, and before {before}"


@pytest.mark.parametrize("requests", few(1, [25, 10_000], SLOW))
def test_random_aborts_leave_no_memory_held(requests: int) -> None:
    """Of every kind of input, with speech and without, at every moment of a request's life."""
    outside = held_by_process()

    async def main() -> Counter[str]:
        async with await asyncio.to_thread(open_omni) as omni:
            alone = {
                (chat, wanted): await omni.complete(CHATS[chat], sampling=LENGTHS, modalities=wanted)
                for chat in range(len(CHATS))
                for wanted in (TEXT, SPEECH)
            }
            await Storm(omni, 12, 1, alone).run()  # threads that start when they are needed are there now
            await asyncio.to_thread(assert_freed, omni)
            before, known = held_by_process(), records()
            storm = Storm(omni, requests, 2, alone)
            async with asyncio.timeout(max(500, requests)):
                await storm.run()
            await asyncio.to_thread(assert_freed, omni)
            assert_no_more(before)
            assert pinned(records()) == pinned(known) == 0
            grown = {kind: count - known[kind] for kind, count in records().items() if count > known[kind] + LEFT_OVER}
            assert grown == {}
            counters = omni.counters()
            assert min(counters[stage]["preemptions"] for stage in ("thinker", "talker")) > 0
            if requests > 1000:
                assert min(counters[stage]["evicted_blocks"] for stage in ("thinker", "talker")) > 0
                early, late = (statistics.median(part) for part in (storm.resident[20:40], storm.resident[40:]))
                assert late <= early * (1 + GROWTH), f"resident memory grew from {early} to {late} bytes"
            return storm.reached

    reached = asyncio.run(main())
    assert sum(reached.values()) == requests
    assert min(reached[moment] for moment in (*MOMENTS, "undisturbed")) > requests / 40, reached
    assert_no_more(outside)


def pinned(counts: Counter[str]) -> int:
    return counts["pinned slots"]


def open_omni() -> AsyncOmni:
    return AsyncOmni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins(), overrides=SETTINGS)
