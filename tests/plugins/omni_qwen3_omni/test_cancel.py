"""Requests that their users give up, through the public interface, while others go on."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from omni import AsyncOmni, Omni, Output, Result
from omni_ar.layers.codec_talker import CodecTalker
from omni_ar.layers.deepstack import DeepstackModel
from omni_encoder.towers.picture_encoder import PictureEncoder
from omni_qwen3_omni.frontend import OmniFrontend
from omni_vocoder.streaming import StreamingVocoder
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import (
    SHAPE,
    Bystander,
    assert_freed,
    assert_like,
    audio_of,
    held,
    lengths,
    picture,
    sound,
    text_of,
    tiny_plugins,
    user,
)

UNSEEN = itertools.count(100)
VICTIM = user(picture(1), sound(1), "what is it")
LONG = lengths(60, 80)
ENDLESS = lengths(10**6, 10**6)
MOMENTS: dict[str, Callable[[Output], bool]] = {
    "the first text": lambda output: bool(output.text),
    "the first sound": lambda output: output.audio is not None,
    "the end of the text": lambda output: "thinker" in output.finish_reasons,
    "the last sound": lambda output: "talker" in output.finish_reasons and output.audio is not None,
}


@pytest.fixture(scope="module")
def bystander(omni: Omni) -> Bystander:
    return Bystander.of(omni)


def beside(omni: Omni, bystander: Bystander, act: Callable[[], None]) -> None:
    """Runs `act` after the bystander began; that one then gives what it gives alone, up to the order of sums."""
    stream = omni.generate(list(bystander.messages), sampling=bystander.sampling)
    first = next(stream)
    act()
    outputs = [first, *stream]
    assert text_of(outputs) == bystander.text
    assert_like(audio_of(outputs), bystander.audio)
    assert_freed(omni)


@pytest.mark.parametrize("moment", MOMENTS)
def test_leaving_the_loop(omni: Omni, bystander: Bystander, moment: str) -> None:
    def act() -> None:
        for output in omni.generate(VICTIM, sampling=LONG):
            assert not output.finished
            if MOMENTS[moment](output):
                break

    beside(omni, bystander, act)


def test_closing_while_the_prompt_is_prepared(
    omni: Omni, bystander: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, gate, prepare = threading.Event(), threading.Event(), OmniFrontend.prepare

    def slow(self: OmniFrontend, chat: Any) -> Any:
        inside.set()
        assert gate.wait(10)
        return prepare(self, chat)

    def act() -> None:
        monkeypatch.setattr(OmniFrontend, "prepare", slow)
        stream = omni.generate(VICTIM, sampling=ENDLESS)
        assert inside.wait(10)
        stream.close()
        gate.set()
        assert list(stream) == []

    beside(omni, bystander, act)


@pytest.mark.parametrize(
    ("model", "method", "stage", "what", "count"),
    [
        (PictureEncoder, "encode", "vision_encoder", "items", 1),
        (DeepstackModel, "forward", "thinker", "rows", 2),
        (CodecTalker, "forward", "talker", "rows", 2),
        (StreamingVocoder, "decode", "code2wav", "rows", 2),
    ],
)
def test_closing_in_the_middle_of_a_step(
    omni: Omni,
    bystander: Bystander,
    monkeypatch: pytest.MonkeyPatch,
    model: type,
    method: str,
    stage: str,
    what: str,
    count: int,
) -> None:
    """The engine's thread is inside a model, with a batch of which the request is part."""
    inside, gate, real = threading.Event(), threading.Event(), vars(model)[method]

    def slow(*arguments: Any, **named: Any) -> Any:
        if omni.usage()[stage][what] >= count:
            inside.set()
            assert gate.wait(10)
        return real(*arguments, **named)

    def act() -> None:
        monkeypatch.setattr(model, method, slow)
        # One that no other case has shown: encoders keep what they have encoded.
        stream = omni.generate(user(picture(next(UNSEEN)), "what is it"), sampling=ENDLESS)
        assert inside.wait(10)
        stream.close()
        gate.set()

    beside(omni, bystander, act)


def test_closing_at_any_time(omni: Omni) -> None:
    """From before its preparation to past the first sound."""
    for wait in range(0, 160, 16):
        stream = omni.generate(VICTIM, sampling=ENDLESS)
        time.sleep(wait / 1000)
        stream.close()
        assert_freed(omni)
    assert omni.generate("still there", sampling=lengths(3, 3), stream=False).usage.tokens == {
        "thinker": 3,
        "talker": 4,
    }


def test_tasks_that_end_early(bystander: Bystander) -> None:
    async def cancelled(omni: AsyncOmni) -> None:
        started = asyncio.Event()

        async def read() -> None:
            async for output in omni.generate(VICTIM, sampling=ENDLESS):
                if output.audio is not None:
                    started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def closed(omni: AsyncOmni) -> None:
        stream = omni.generate(VICTIM, sampling=ENDLESS)
        await anext(stream)
        await stream.aclose()

    async def left(omni: AsyncOmni) -> None:
        async for _ in omni.generate(VICTIM, sampling=ENDLESS):
            break

    async def timed_out(omni: AsyncOmni) -> None:
        for milliseconds in (0, 2, 5, 10, 20, 40, 80, 160):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(omni.complete(VICTIM, sampling=ENDLESS), milliseconds / 1000)

    async def main() -> None:
        async with AsyncOmni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins()) as omni:
            for way in (cancelled, closed, left, timed_out):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    other = asyncio.create_task(omni.complete(list(bystander.messages), sampling=bystander.sampling))
                    await way(omni)
                    result = await other
                assert result.text == bystander.text
                assert_like(result.audio, bystander.audio)
                await asyncio.to_thread(assert_freed, omni)

    asyncio.run(main())


CHATS = [
    user("where is it"),
    user(sound(4, 0.4), "what was that"),
    user(picture(5), "how many are there"),
    user(picture(6), sound(6, 0.7), "who said so"),
    user("the red circle and the blue square are down"),
]


def test_a_random_half_of_thirty(omni: Omni) -> None:
    alone = [omni.generate(chat, sampling=lengths(6, 12), stream=False) for chat in CHATS]
    rng = random.Random(7)
    given_up = set(rng.sample(range(30), 15))

    async def one(omni: AsyncOmni, number: int) -> Result | None:
        await asyncio.sleep(rng.uniform(0, 0.2))
        work = omni.complete(CHATS[number % len(CHATS)], sampling=lengths(6, 12) if number not in given_up else ENDLESS)
        if number not in given_up:
            return await work
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, rng.uniform(0, 0.6))
        return None

    async def main() -> list[Result | None]:
        async with AsyncOmni(
            tiny_checkpoint(3, **SHAPE),
            device="cpu",
            plugins=tiny_plugins(),
            overrides={"thinker.max_num_seqs": 12, "talker.max_num_seqs": 5, "code2wav.max_num_seqs": 3},
        ) as omni:
            async with asyncio.timeout(PATIENCE_SECONDS):
                results = await asyncio.gather(*(one(omni, number) for number in range(30)))
            await asyncio.to_thread(assert_freed, omni)
            assert held(omni) == {}
            return results

    results = asyncio.run(main())
    for number, result in enumerate(results):
        expected = alone[number % len(CHATS)]
        assert (result is None) == (number in given_up)
        if result is not None:
            assert (result.text, result.usage) == (expected.text, expected.usage)
            assert_like(result.audio, expected.audio)
