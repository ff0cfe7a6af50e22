"""Sampled requests: transformers' own warpers, then the engine's noise, draw the same tokens and codes.

And by themselves: the same seed gives the same answer in any company, another seed another one.
"""

import pytest

from omni.sampling import SamplingParams
from tests.support.omni_engine import OmniEngine, assert_parity, assert_same
from tests.support.reference import chat, picture, reference_of, sound, tiny_checkpoint, with_sampling
from tests.support.tiers import chosen

THINKER = {
    "temperature alone": SamplingParams(temperature=0.7, seed=1),
    "top-k": SamplingParams(temperature=1.0, top_k=5, seed=2**62 + 3),
    "top-p": SamplingParams(temperature=1.3, top_p=0.8, seed=0),
    "all, with penalty": SamplingParams(temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.2, seed=77),
}
TALKER = {
    "as published": SamplingParams(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=5),
    "narrow": SamplingParams(temperature=0.8, top_k=10, top_p=0.9, seed=2**63 - 1),
    "hot, with penalty": SamplingParams(temperature=1.5, top_k=0, top_p=0.95, repetition_penalty=1.3, seed=2**31),
}
SPEECH = chat("hello", sound(0.7), picture(64, 96), "who is it", max_text=16, max_codes=30)


@pytest.fixture(scope="module")
def engine() -> OmniEngine:
    return OmniEngine(tiny_checkpoint(41, stop_gain=0.0, codec_stop_gain=0.0))


@pytest.mark.parametrize("params", chosen(["all, with penalty", "top-p"], THINKER))
def test_parity_of_a_sampled_thinker(engine: OmniEngine, params: str) -> None:
    asked = chat("hello", picture(64, 96), "what is it", max_text=40, max_codes=4, thinker=THINKER[params])

    assert_parity(engine, [asked])


@pytest.mark.parametrize("params", chosen(["hot, with penalty"], TALKER))
def test_parity_of_a_sampled_talker_in_every_group(engine: OmniEngine, params: str) -> None:
    """The code predictor samples with top-k 50 and top-p 0.8 whenever the talker samples."""
    asked = chat("hello", sound(0.7), "who is it", max_text=8, max_codes=40, talker=TALKER[params])

    assert_parity(engine, [asked])


def test_parity_of_a_sampled_whole_in_a_batch(engine: OmniEngine) -> None:
    """Sampled and greedy rows side by side."""
    chats = [
        chat("hello", max_codes=20, thinker=THINKER["top-k"], talker=TALKER["narrow"]),
        chat("hello", max_codes=20),
        chat("hello", sound(0.5), max_codes=20, thinker=THINKER["top-p"]),
        chat("hello", max_codes=20, talker=TALKER["as published"], voice="aiden"),
    ]

    assert_parity(engine, chats, [0, 1, 4, 7])


def test_the_published_sampling_is_the_default(engine: OmniEngine) -> None:
    """The talker's parameters that a request leaves out have the defaults of transformers' `generate`."""
    open_ = with_sampling(SPEECH, "talker", temperature=None, seed=5)
    spelled = with_sampling(SPEECH, "talker", temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=5)

    assert_same(engine.answer(open_), reference_of(engine.folder).answer(spelled))


def test_without_a_seed_every_run_differs(engine: OmniEngine) -> None:
    sampled = with_sampling(with_sampling(SPEECH, "thinker", temperature=1.0), "talker", temperature=1.0)

    answers = engine.run([sampled] * 3)

    assert len({tuple(answer.ids) for answer in answers}) == 3
    assert len({tuple(answer.frames) for answer in answers}) == 3
