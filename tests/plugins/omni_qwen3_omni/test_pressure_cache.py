"""The prefix cache, whole pipeline: the same chat again, and the next turn with media, are computed less and give the same."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from omni.frontend.base import Chat, Message, Part, TextPart
from tests.plugins.omni_qwen3_omni.parity_cases import CASES, VOICES
from tests.support.omni_engine import OmniEngine, Result, assert_parity
from tests.support.pressure import SMALL_BUDGET, counted, overrides
from tests.support.reference import chat, picture, says, sound, text_only, tiny_checkpoint
from tests.support.tiers import SLOW, few

AR = ("thinker", "talker")
SIZE = 4
"""Tokens per block."""

BLOCKS = overrides({"thinker.block_size": SIZE, "talker.block_size": SIZE}, SMALL_BUDGET)


def fresh(settings: Mapping[str, object] = BLOCKS) -> OmniEngine:
    return OmniEngine(tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0, voices=VOICES), settings)


def whole_blocks(result: Result, stage: str) -> int:
    """Prompt tokens in full blocks; the newest token is always run."""
    return (result.stages[stage].counts["prompt_tokens"] - 1) // SIZE * SIZE


def cached(result: Result, stage: str) -> int:
    return result.stages[stage].counts["cached_tokens"]


def prefilled(engine: OmniEngine) -> dict[str, int]:
    return {stage: counted(engine, stage)["prefill_tokens"] for stage in AR}


@pytest.mark.slow
def test_parity_of_every_kind_of_input_that_was_there_before() -> None:
    """All that is full is hit, in both stages, hidden states for the talker included, and only the rest is computed."""
    engine, chats = fresh(), [asked for asked in CASES.values() if "audio" in asked.modalities]
    assert_parity(engine, chats)
    first = prefilled(engine)

    results = assert_parity(engine, chats)

    second = prefilled(engine)
    for result in results:
        for stage in AR:
            assert cached(result, stage) == whole_blocks(result, stage)
    for stage in AR:
        rest = sum(result.stages[stage].counts["prompt_tokens"] - cached(result, stage) for result in results)
        assert second[stage] - first[stage] == rest < first[stage] / 5


def test_parity_of_the_next_turns_of_a_chat_with_media() -> None:
    """Each turn finds the blocks of the whole turn before: its media and its answer."""
    engine = fresh()
    asked = chat(says("system", "you see"), says("user", picture(64, 96, 1), "what is it", sound(0.8, 1)), max_text=12)
    before = 0
    questions: list[list[Part]] = [
        [TextPart("and why")],
        [picture(96, 64, 2), TextPart("or this")],
        [TextPart("so"), sound(1.1, 2)],
    ]
    for question in questions:
        (result,) = assert_parity(engine, [asked])
        assert cached(result, "thinker") >= before
        assert (cached(result, "talker") > 0) == (before > 0)
        before = result.stages["thinker"].counts["prompt_tokens"] // SIZE * SIZE
        decoder = engine.frontend.text_decoder()
        assert decoder is not None
        answer = decoder.push(result.ids) + decoder.finish()
        asked = replace(asked, messages=(*asked.messages, says("assistant", answer), Message("user", tuple(question))))


def test_parity_of_a_chat_whose_beginning_was_only_read() -> None:
    """Its hidden states were not stored, so blocks with media are computed again for the request with speech."""
    engine = fresh()
    spoken = chat("what is it that you see here", picture(64, 96, 1), "and why", sound(0.8, 1))
    engine.answer(text_only(spoken))
    silent = engine.answer(text_only(spoken))
    assert cached(silent, "thinker") == whole_blocks(silent, "thinker")

    results = [assert_parity(engine, [spoken])[0] for _ in range(2)]

    assert 0 < cached(results[0], "thinker") < cached(results[1], "thinker") == whole_blocks(results[1], "thinker")


@pytest.mark.parametrize(
    ("one", "other"),
    few(
        2,
        [
            (chat("what is it", picture(64, 96, 1)), chat("what is it", picture(64, 96, 2))),
            (chat("what is it", picture(64, 96, 1)), chat("what is it", picture(96, 64, 1))),
            (chat("what is it", sound(0.8, 1)), chat("what is it", sound(0.8, 2))),
            (chat("what is it", voice="ethan"), chat("what is it", voice="aiden")),
            (chat("hello world, which"), chat("hello people, which")),
            (
                chat(says("user", picture(64, 64, 1)), says("assistant", "one"), says("user", "and", sound(0.5, 1))),
                chat(says("user", picture(64, 64, 2)), says("assistant", "one"), says("user", "and", sound(0.5, 1))),
            ),
        ],
        SLOW,
    ),
    ids=["other picture", "other size", "other sound", "other voice", "other text", "other earlier picture"],
)
def test_parity_of_a_family_that_only_looks_alike(one: Chat, other: Chat) -> None:
    engine = fresh()
    for asked in (one, other, one):
        assert_parity(engine, [asked])
