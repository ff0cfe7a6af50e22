"""Hidden states of tokens that were accepted as drafts: every row reaches its readers, once, whole, in order, and no other does."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from omni.testing.simulation.device import SimulatedDevice
from tests.omni.engine.hidden_engine import HiddenEngine
from tests.support.hidden_family import HOST_READER, READER, WRITER, write_checkpoint
from tests.support.small_text import WIDTH, greedy
from tests.support.tiers import SLOW, chosen, few
from tests.support.tiny_heads import eagle3_head

pytestmark = pytest.mark.thorough

BOTH = (READER, HOST_READER)
PROMPTS = [[(7 * place * place + 11 * index) % 61 for place in range(3 + 4 * index)] for index in range(5)]
REQUESTS = [(prompt, range(0, len(prompt), 2)) for prompt in PROMPTS]
TOKENS, VOCABULARY = 13, 61
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "plenty": {},
    "few blocks": {"writer.num_blocks": 11, "writer.max_model_len": 40},
    "small budget, no cache": {"writer.max_num_batched_tokens": 5, "writer.prefix_cache": False},
    "slow": {"reader.every": 7, "reader.max_num_seqs": 2, "host_reader.every": 5, "host_reader.max_num_seqs": 2},
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


DRAFTED = (3, 11)
"""Ids of the drafts of a head, and of texts for it: its weights are random, and some of its drafts are right."""
OTHERS = tuple(set(range(VOCABULARY)).difference(DRAFTED))


def write_head(folder: Path) -> dict[str, object]:
    """An `eagle3` head for the writer; returns `drafter_args`."""
    head = eagle3_head(
        {"hidden_size": WIDTH, "vocab_size": VOCABULARY}, draft_size=len(DRAFTED), states=2, hidden_size=16
    )
    head.weights["d2t"] = torch.tensor(DRAFTED) - torch.arange(len(DRAFTED))
    return {"model": str(head.write(folder / "head")), "layers": [0, 1]}


@pytest.mark.parametrize("simulated", few(1, [False, True], SLOW))
@pytest.mark.parametrize("pressure", SETTINGS)
def test_rows_reach_both_readers_after_drafts_of_a_head(tmp_path: Path, pressure: str, simulated: bool) -> None:
    """It reads hidden states of the same steps as they do."""
    device = SimulatedDevice(3) if simulated else None
    given = {"writer.drafter": "eagle3", "writer.drafter_args": write_head(tmp_path), "writer.adaptive_drafts": False}
    engine = engine_of(tmp_path, {**SETTINGS[pressure], **given, "writer.max_in_flight": 3}, device)
    results = [
        engine.submit(str(index), ids, payload=payload, max_tokens=TOKENS, suppress_token_ids=OTHERS)
        for index, (ids, payload) in enumerate(REQUESTS)
    ]
    if simulated:
        engine.simulate().run()
    else:
        engine.run()
    for (ids, payload), result in zip(REQUESTS, results, strict=True):
        with torch.inference_mode():
            assert result.tokens == greedy(engine.model, ids, TOKENS, suppressed=OTHERS)
        engine.expect(result, ids, payload)
    counters = engine.engine.counters()[WRITER]
    assert 2 < counters["accepted_drafts"] < counters["drafted_tokens"]
    if device is not None:
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
