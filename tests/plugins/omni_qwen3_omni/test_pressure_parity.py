"""Parity under pressure: small token budgets, few blocks, slow consumers, with the prefix cache and without.

As elsewhere: text tokens and codes of every group equal to transformers', the waveform within 1e-4 of its peak.
"""

import random
from pathlib import Path

import pytest

from omni.frontend.base import Chat
from omni.sampling import SamplingParams
from tests.plugins.omni_qwen3_omni.parity_cases import CASES, MIXED, VOICES
from tests.support.omni_engine import OmniEngine, assert_same
from tests.support.pressure import NO_CACHE, SMALL_BUDGET, Overrides, counted, few_blocks, overrides
from tests.support.reference import chat, picture, reference_of, sound, tiny_checkpoint
from tests.support.tiers import chosen

PRODUCT = {
    f"{budget}, {cache}, {pool}"
    for budget in ("any budget", "budget 7")
    for cache in ("cached", "not cached")
    for pool in ("any pool", "few blocks")
}
CHOSEN = ("budget 7, cached, few blocks", "budget 7, not cached, any pool", "any budget, not cached, few blocks")

AR = ("thinker", "talker")
SAMPLED = [
    chat(
        "hello",
        picture(64, 96),
        sound(0.7),
        "who is it",
        max_text=16,
        max_codes=30,
        voice=voice,
        thinker=SamplingParams(temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.2, seed=seed),
        talker=SamplingParams(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=seed + 5),
    )
    for seed, voice in enumerate(("ethan", "aiden", "chelsie", "ethan", "aiden"))
]


def pressures(*names: str) -> pytest.MarkDecorator:
    """Of `PRODUCT` those named in every run, the others only where slow tests are asked for."""
    return pytest.mark.parametrize("pressure", chosen(names, sorted(PRODUCT)))


def under(pressure: str, folder: Path, pool: Overrides) -> OmniEngine:
    """An engine under a pressure of `PRODUCT`. pool: what few blocks are here."""
    parts = {"budget 7": SMALL_BUDGET, "not cached": NO_CACHE, "few blocks": pool}
    return OmniEngine(folder, overrides(*(parts.get(part, {}) for part in pressure.split(", "))))


def assert_all_same(engine: OmniEngine, chats: list[Chat], arrivals: list[int]) -> None:
    results = engine.run(chats, arrivals)
    for result, asked in zip(results, chats, strict=True):
        assert_same(result, reference_of(engine.folder).answer(asked))


def assert_pressed(engine: OmniEngine, pressure: str) -> None:
    """The pressure was felt: a pool that is large enough shows nothing."""
    for stage in AR:
        preemptions = counted(engine, stage)["preemptions"]
        assert (preemptions > 0) == ("few blocks" in pressure), f"{stage}: {preemptions} preemptions"
        assert (counted(engine, stage)["cached_blocks"] == 0) == ("not cached" in pressure)


@pressures(CHOSEN[0])
def test_parity_of_every_kind_of_input(pressure: str) -> None:
    """What the parity tests ask one by one, at once; the longest prompt only where it fits."""
    folder = tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0, voices=VOICES)
    engine = under(pressure, folder, few_blocks(26, 28))
    chats = [asked for name, asked in CASES.items() if name != "long prompt" or "any pool" in pressure]

    assert_all_same(engine, chats, list(range(0, 2 * len(chats), 2)))

    assert_pressed(engine, pressure)


@pressures(CHOSEN[1])
def test_parity_of_eight_that_join_one_by_one_and_again(pressure: str) -> None:
    """The second time in another order, with the cache as the first time left it."""
    engine = under(pressure, tiny_checkpoint(11, stop_gain=0.5, codec_stop_gain=0.5), few_blocks(24, 23))
    chance = random.Random(3)

    assert_all_same(engine, MIXED, [0, 2, 5, 6, 11, 15, 16, 28])
    again = chance.sample(MIXED, len(MIXED))
    assert_all_same(engine, again, [chance.randrange(40) for _ in again])

    assert_pressed(engine, pressure)
    for stage in AR:
        assert (counted(engine, stage)["cached_tokens"] > 0) == ("not cached" not in pressure)


@pressures(CHOSEN[2])
def test_parity_of_sampled_requests(pressure: str) -> None:
    """A draw depends on its position, and not on how often the request was started or with whom it ran."""
    engine = under(pressure, tiny_checkpoint(41, stop_gain=0.0, codec_stop_gain=0.0), few_blocks(16, 21))

    assert_all_same(engine, [*SAMPLED, chat("hello", max_codes=20)], [0, 1, 2, 9, 14, 15])

    assert_pressed(engine, pressure)
