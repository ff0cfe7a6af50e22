"""Requests that join and leave at random, under every pressure at once: those that stay have the answers of transformers."""

import random

import pytest

from tests.plugins.omni_qwen3_omni.parity_cases import MIXED
from tests.support.devices import StirredDevice
from tests.support.omni_engine import GIVEN_UP, OmniEngine, Result, assert_same
from tests.support.pressure import NO_CACHE, SMALL_BUDGET, counted, few_blocks, overrides
from tests.support.reference import Answer, reference_of, tiny_checkpoint
from tests.support.tiers import SLOW, few

FEW_ROWS = {"thinker.max_num_seqs": 8, "talker.max_num_seqs": 6, "code2wav.max_num_seqs": 2}
REQUESTS = 30


def assert_begins(result: Result, answer: Answer) -> None:
    """What was given before the end is the beginning of the whole answer."""
    assert result.ids == answer.ids[: len(result.ids)]
    assert result.codes.T.tolist() == answer.codes.T[: len(result.frames)].tolist()
    assert result.wave.size <= answer.wave.size


@pytest.mark.parametrize("seed", few(1, range(20), SLOW))
def test_parity_of_those_that_stay(seed: int) -> None:
    """Every other time on a device whose streams run late."""
    chance = random.Random(seed)
    folder = tiny_checkpoint(11, stop_gain=0.5, codec_stop_gain=0.5)
    settings = [FEW_ROWS, few_blocks(24, 23), SMALL_BUDGET if chance.random() < 0.7 else {}]
    device = StirredDevice(seed) if seed % 2 else "cpu"
    engine = OmniEngine(folder, overrides(*settings, NO_CACHE if seed % 3 == 2 else {}), device)
    chats = [chance.choice(MIXED) for _ in range(REQUESTS)]
    arrivals = [chance.randrange(120) for _ in chats]
    departures = {
        index: arrivals[index] + chance.randrange(120) for index in chance.sample(range(REQUESTS), REQUESTS // 2)
    }

    results = engine.run(chats, arrivals, departures)

    left = 0
    for index, (result, asked) in enumerate(zip(results, chats, strict=True)):
        answer = reference_of(folder).answer(asked)
        if result.error is GIVEN_UP:
            assert index in departures
            assert_begins(result, answer)
            left += 1
        else:
            assert_same(result, answer)
    assert 3 < left < REQUESTS - 10
    assert sum(counted(engine, stage)["preemptions"] for stage in ("thinker", "talker")) > 0
