"""Hidden states of tokens that were accepted as drafts: every row reaches its readers, once, whole, in order, and no other does."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omni.testing.simulation.device import SimulatedDevice
from tests.omni.engine.hidden_engine import HiddenEngine
from tests.support.hidden_family import CLERK, READER, WRITER, write_checkpoint
from tests.support.tiers import SLOW, chosen, few

pytestmark = pytest.mark.thorough

BOTH = (READER, CLERK)
PROMPTS = [[(7 * place * place + 11 * index) % 61 for place in range(3 + 4 * index)] for index in range(5)]
REQUESTS = [(prompt, range(0, len(prompt), 2)) for prompt in PROMPTS]
TOKENS = 13
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "plenty": {},
    "few blocks": {"writer.num_blocks": 11, "writer.max_model_len": 40},
    "small budget, no cache": {"writer.max_num_batched_tokens": 5, "writer.prefix_cache": False},
    "slow": {"reader.every": 7, "reader.max_num_seqs": 2, "clerk.every": 5, "clerk.max_num_seqs": 2},
}


def engine_of(folder: Path, settings: Mapping[str, object], device: Any = None, **options: Any) -> HiddenEngine:
    drafts = {"writer.drafter": "fabricated", "writer.draft_tokens": 4, "writer.drafter_args": {"rate": 0.8}}
    return HiddenEngine(write_checkpoint(folder, readers=BOTH), {**drafts, **settings}, device, **options)


def run_twice(engine: HiddenEngine, *, simulated: bool = False) -> None:
    """The second time the future is known, so steps without chunks give several tokens."""
    for _ in range(2):
        results = engine.submit_all(REQUESTS, TOKENS)
        if simulated:
            engine.simulate().run()
        else:
            engine.run()
        engine.expect_all(REQUESTS, results, TOKENS)
    assert engine.engine.counters()[WRITER]["accepted_drafts"] > 5


@pytest.mark.parametrize("in_flight", few(1, [4, 1, 2], SLOW))
@pytest.mark.parametrize("pressure", SETTINGS)
def test_rows_reach_both_readers(tmp_path: Path, pressure: str, in_flight: int) -> None:
    given = {"writer.max_in_flight": in_flight, "writer.block_size": 4, "writer.adaptive_drafts": in_flight > 1}
    engine = engine_of(tmp_path, {**SETTINGS[pressure], **given})
    run_twice(engine)
    assert bool(engine.engine.counters()[WRITER]["preemptions"]) == (pressure == "few blocks")


@pytest.mark.parametrize(
    ("seed", "graphs"),
    chosen(((1, False), (2, True)), itertools.product(range(60), (False, True))),
)
def test_no_reader_reads_the_writes_of_a_later_step(tmp_path: Path, seed: int, graphs: bool) -> None:
    device = SimulatedDevice(seed)
    names = tuple(SETTINGS)
    given = {"writer.max_in_flight": 1 + seed % 4, "writer.block_size": 4, "engine.graphs": graphs}
    run_twice(engine_of(tmp_path, {**SETTINGS[names[seed % len(names)]], **given}, device), simulated=True)
    device.assert_no_races()


@pytest.mark.parametrize("place", range(1, 9))
def test_a_stop_within_accepted_drafts(tmp_path: Path, place: int) -> None:
    """The row of the stop token is the last one."""
    engine = engine_of(tmp_path, {"writer.adaptive_drafts": False, "writer.drafter_args": {"rate": 1.0}})
    prompt = PROMPTS[2]
    whole = engine.greedy(prompt, TOKENS)
    engine.submit("before", prompt, max_tokens=TOKENS)
    engine.run()
    stop = whole[place]
    result = engine.submit("stopped", prompt, max_tokens=TOKENS, stop_token_ids=[stop])
    engine.run()
    assert result.tokens == whole[: whole.index(stop) + 1]
    assert result.reason == "stop"
    engine.expect(result, prompt)
