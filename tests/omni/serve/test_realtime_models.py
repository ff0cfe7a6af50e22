"""A realtime session with a tiny model of a real family: its input and output, and its prefix cache."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni import AsyncOmni, SamplingParams
from tests.omni.serve.http_server import STRICT, Served, served
from tests.omni.serve.realtime import session, speech
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, tiny_plugins

INSTRUCTIONS = "You are kind, and your answers are brief. " * 2
SHORT: dict[str, Any] = {"max_output_tokens": 4, "sampling": {"talker": {"max_tokens": 5}}}


@pytest.fixture(scope="module")
def talker() -> Iterator[Served]:
    model = tiny_checkpoint(3, max_positions=512, **SHAPE)
    with served(AsyncOmni(model, device="cpu", plugins=tiny_plugins(), overrides=STRICT)) as it:
        yield it


def cached(server: Served) -> int:
    return server.omni.counters()["thinker"]["cached_tokens"]


def test_speech_is_heard_and_answered_as_by_the_model_itself(talker: Served) -> None:
    said = speech(0.5)

    async def main() -> None:
        async with session(talker) as client:
            await client.manual(seed=1, instructions=INSTRUCTIONS, **SHORT)
            await client.append(said)
            await client.send(type="input_audio_buffer.commit")
            response = await client.respond()
            assert response.status == "incomplete"
            messages: list[Any] = [
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": [{"type": "input_audio", "input_audio": (said, 24000)}]},
            ]
            sampling = {
                "thinker": SamplingParams(max_tokens=4, seed=1),
                "talker": SamplingParams(max_tokens=5, seed=1),
            }
            result = await talker.omni.complete(messages, modalities=("text", "audio"), sampling=sampling)
            assert response.output[0].content[0].transcript == result.text
            assert result.sample_rate == 24000
            assert result.audio is not None
            expected = np.round(np.clip(result.audio.numpy(), -1, 1) * 32767)
            np.testing.assert_array_equal(client.sound(), expected.astype(np.int16))

    asyncio.run(main())


def test_each_turn_finds_the_turns_before_in_the_cache(talker: Served) -> None:
    async def main() -> None:
        async with session(talker) as client:
            await client.manual(instructions=INSTRUCTIONS, **SHORT)
            prompt_before = 0
            for turn in range(3):
                # The longest first: its processor computes the end of others otherwise.
                await client.append(speech(1.4 - turn / 10))
                await client.send(type="input_audio_buffer.commit")
                before = cached(talker)
                usage = (await client.respond()).usage
                found = usage.input_token_details.cached_tokens
                assert cached(talker) - before == found
                # Whole blocks of the prompt before, which the new one starts with.
                assert found > prompt_before - 32 if turn else found == 0
                prompt_before = usage.input_tokens

    asyncio.run(main())


def test_sessions_share_no_cache_unless_they_ask_for_it(talker: Served) -> None:
    async def first_turn(**fields: str) -> int:
        async with session(talker) as client:
            await client.manual(instructions=INSTRUCTIONS, **fields, **SHORT)
            await client.say("hello")
            return int((await client.respond()).usage.input_token_details.cached_tokens)

    async def main() -> list[int]:
        counts = [await first_turn(), await first_turn()]
        return [*counts, await first_turn(cache_salt="team"), await first_turn(cache_salt="team")]

    *alone, shared = asyncio.run(main())
    assert alone == [0, 0, 0]
    assert shared > 0
