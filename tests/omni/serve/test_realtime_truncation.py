"""Conversations that are longer than the model's context."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni import AsyncOmni, InputError
from omni.serve.realtime.formats import PCM
from omni.serve.realtime.items import Item, ItemPart
from omni.serve.realtime.truncation import PromptBound, RetentionRatio, TokenLimits, prompt_bound, without_oldest
from tests.omni.serve.http_server import STRICT, Served, echo_omni, served
from tests.omni.serve.realtime import Client, session, silence, speech
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, tiny_plugins

SHORT: dict[str, Any] = {"max_output_tokens": 4, "sampling": {"talker": {"max_tokens": 5}}}
LENGTH = 512
"""Tokens of the context of the tiny model."""


@pytest.fixture(scope="module")
def talker() -> Iterator[Served]:
    model = tiny_checkpoint(3, max_positions=LENGTH, **SHAPE)
    with served(AsyncOmni(model, device="cpu", plugins=tiny_plugins(), overrides=STRICT)) as it:
        yield it


@pytest.fixture(scope="module")
def voiced(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder)) as it:
        yield it


def retention(ratio: float, most: int | None = None) -> dict[str, Any]:
    limits = {} if most is None else {"token_limits": {"post_instructions": most}}
    return {"type": "retention_ratio", "retention_ratio": ratio, **limits}


def texts(count: int) -> list[str]:
    """Of one length each."""
    return [f"{number:02d} is the number of this sentence." for number in range(count)]


async def echo_of_prompt(client: Client) -> str:
    """The echo of the prompt."""
    response = await client.respond()
    assert response.status == "completed", response
    return str(response.output[0].content[0].text)


def test_the_oldest_items_are_left_out(talker: Served) -> None:
    """As few as needed, and the answer is that to the rest."""
    said = texts(30)

    async def main() -> None:
        async with session(talker) as client:
            started = client.events[0].session
            assert started.truncation == "auto"
            await client.manual(seed=1, instructions="Be kind.", output_modalities=["text"], **SHORT)
            for text in said:
                await client.say(text)
            response = await client.respond()
            assert response.status == "incomplete"
            most = LENGTH - 4
            longest = 0
            for count in range(1, len(said) + 1):
                messages = [{"role": "system", "content": "Be kind."}]
                messages += [{"role": "user", "content": text} for text in said[-count:]]
                if await talker.server.prompt_tokens("realtime", messages) > most:
                    break
                longest = count
            assert 1 < longest < len(said)
            messages = [{"role": "system", "content": "Be kind."}]
            messages += [{"role": "user", "content": text} for text in said[-longest:]]
            assert response.usage.input_tokens == await talker.server.prompt_tokens("realtime", messages)

    asyncio.run(main())


def test_truncated_items_stay_out_of_prompts_and_in_the_conversation(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            truncation = retention(0.5, 50)
            shown = await client.manual(output_modalities=["text"], instructions="be", truncation=truncation)
            assert shown.truncation.retention_ratio == 0.5
            assert shown.truncation.token_limits.post_instructions == 50
            items = [await client.say(letter * 9) for letter in "abcde"]
            # "be|x" is the least; 50 more may follow. "be|" and five of nine letters each have 52 in all.
            assert await echo_of_prompt(client) == "be|" + "|".join(letter * 9 for letter in "abcde")
            await client.say("f" * 9)
            # 112 are too many: half of 50 are kept. The answer before is the longest item of all.
            assert await echo_of_prompt(client) == "be|" + "f" * 9
            await client.say("g" * 9)
            assert await echo_of_prompt(client) == "be|" + "|".join(["f" * 9, "be|" + "f" * 9, "g" * 9])
            await client.send(type="conversation.item.retrieve", item_id=items[0].id)
            assert (await client.until("conversation.item.retrieved")).item.content[0].text == "a" * 9
            await client.send(type="conversation.item.delete", item_id=items[0].id)
            await client.until("conversation.item.deleted")

    asyncio.run(main())


@pytest.mark.parametrize(("ratio", "kept"), [(1.0, "defgh"), (0.8, "efgh"), (0.5, "gh"), (0.2, "h")])
def test_only_the_share_of_tokens_that_is_asked_for_is_retained(voiced: Served, ratio: float, kept: str) -> None:
    """The echo's tokens are characters, and one stands between two items: five of nine letters have 49."""

    async def main() -> None:
        async with session(voiced) as client:
            await client.manual(output_modalities=["text"], truncation=retention(ratio, 48))
            for letter in "abcdefgh":
                await client.say(letter * 9)
            assert await echo_of_prompt(client) == "|".join(letter * 9 for letter in kept)

    asyncio.run(main())


def test_truncation_is_no_request_and_no_failure_of_its_own(voiced: Served) -> None:
    def counted(name: str) -> float:
        found = voiced.server.metrics.registry.get_sample_value(name, {"kind": "realtime"})
        return found or 0.0

    async def main() -> None:
        async with session(voiced) as client:
            await client.manual(output_modalities=["text"], truncation=retention(1.0, 20))
            for letter in "abcdefgh":
                await client.say(letter * 9)
            begun, ended = counted("omni_requests_total"), counted("omni_requests_finished_total")
            assert await echo_of_prompt(client) == "ggggggggg|hhhhhhhhh"
            assert counted("omni_requests_total") - begun == 1
            assert counted("omni_requests_finished_total") - ended == 1
            failed = voiced.server.metrics.registry.get_sample_value(
                "omni_requests_failed_total", {"kind": "realtime", "reason": "invalid_value"}
            )
            assert not failed

    asyncio.run(main())


def test_without_truncation_a_long_conversation_is_refused(talker: Served) -> None:
    async def main() -> None:
        async with session(talker) as client:
            await client.manual(truncation="disabled", output_modalities=["text"], **SHORT)
            for text in texts(30):
                await client.say(text)
            response = await client.respond()
            assert response.status == "failed"
            assert "thinker takes 512" in response.status_details.error.message
            # The client corrects it, and continues.
            shown = await client.update(truncation="auto")
            assert shown.truncation == "auto"
            assert (await client.respond()).status == "incomplete"

    asyncio.run(main())


def test_a_turn_that_is_too_long_alone_is_refused(talker: Served) -> None:
    async def main() -> None:
        async with session(talker) as client:
            await client.manual(output_modalities=["text"], **SHORT)
            await client.say("hello")
            await client.say(" ".join(texts(60)))
            response = await client.respond()
            assert response.status == "failed"
            assert "thinker takes 512" in response.status_details.error.message
            # There was no answer without the other items: they are still there.
            await client.send(type="conversation.item.delete", item_id=client.of("conversation.item.done")[1].item.id)
            await client.until("conversation.item.deleted")
            assert (await client.respond()).status == "incomplete"

    asyncio.run(main())


def test_the_last_turn_is_answered_however_little_is_retained(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual(output_modalities=["text"], truncation=retention(0.0, 10))
            for letter in "ab":
                await client.say(letter * 9)
            assert await echo_of_prompt(client) == "b" * 9
            await client.say("c" * 30)
            assert await echo_of_prompt(client) == "c" * 30

    asyncio.run(main())


def test_the_limit_of_tokens_is_the_models_at_most(talker: Served) -> None:
    async def main() -> None:
        async with session(talker) as client:
            error = await client.wrong(
                type="session.update", session={"type": "realtime", "truncation": retention(0.5, LENGTH)}
            )
            assert error.param == "session.truncation.token_limits.post_instructions"
            assert f"use 1 to {LENGTH - LENGTH // 8}" in error.message

    asyncio.run(main())


def test_long_sounds_are_left_out_too(talker: Served) -> None:
    async def main() -> None:
        async with session(talker) as client:
            await client.manual(output_modalities=["text"], **SHORT)
            counts = []
            for _ in range(6):
                await client.append(speech(9.0))
                await client.send(type="input_audio_buffer.commit")
                await client.until("conversation.item.done")
                response = await client.respond()
                assert response.status == "incomplete"
                counts.append(response.usage.input_tokens)
            assert counts[0] < counts[1] < LENGTH
            assert max(counts) <= LENGTH - 4
            # Turns before are kept as far as they fit.
            assert min(counts[3:]) > LENGTH // 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("truncation", "limit", "instructions", "expected"),
    [
        ("auto", 100, 7, PromptBound(100, 100)),
        ("auto", None, 7, None),
        ("disabled", 100, 7, None),
        (RetentionRatio(retention_ratio=0.8), 100, 20, PromptBound(100, 84)),
        (RetentionRatio(retention_ratio=0.8), None, 20, None),
        (
            RetentionRatio(retention_ratio=0.5, token_limits=TokenLimits(post_instructions=30)),
            100,
            20,
            PromptBound(50, 35),
        ),
        (
            RetentionRatio(retention_ratio=0.5, token_limits=TokenLimits(post_instructions=90)),
            100,
            20,
            PromptBound(100, 60),
        ),
        (RetentionRatio(retention_ratio=1.0, token_limits=TokenLimits()), 100, 120, PromptBound(120, 120)),
    ],
)
def test_bounds_follow_the_settings(truncation: Any, limit: int | None, instructions: int, expected: Any) -> None:
    assert prompt_bound(truncation, limit, instructions) == expected


def test_items_have_the_weight_of_their_contents() -> None:
    """An hour of sound goes before it is asked which of the texts after it to leave out."""
    long = Item("user", [ItemPart("input_audio", sound=silence(60.0), format=PCM)])
    short = [Item("user", [ItemPart("input_text", "hello")]) for _ in range(5)]
    assert without_oldest([long, *short], 800, 780) == short
    assert without_oldest([*short, long], 800, 700) == [long]
    assert len(without_oldest(short, 1000, 999)) == 4
    assert len(without_oldest(short, 1000, 0)) == 2


def test_a_request_may_bound_its_prompt(voiced: Served) -> None:
    async def main() -> None:
        omni = voiced.omni
        assert (await omni.complete("hello", modalities=("text",), max_prompt_tokens=5)).text == "hello"
        with pytest.raises(
            InputError, match="prompt: has 6 tokens, and the request allows 5; shorten it or raise max_pr"
        ):
            await omni.complete("hello!", modalities=("text",), max_prompt_tokens=5)
        wrong: Any = "5"
        with pytest.raises(InputError, match="max_prompt_tokens: is a str; give an int, or None"):
            await omni.complete("hello!", max_prompt_tokens=wrong)

    asyncio.run(main())
