"""Mixed traffic through the public interface for as long as is wanted, and what it did."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from omni import AsyncOmni, Output, StageError
from support.leaks import resident_bytes
from support.tiny_omni import lengths, picture, sound, user

QUESTIONS = ("where is it", "what is that", "how many are there", "who said so", "go on", "and then", "the red circle")
SECONDS = (0.2, 0.5, 0.8)
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
            parts.append(sound(chance.choice((chance.randrange(8), chance.randrange(10**6))), chance.choice(SECONDS)))
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
