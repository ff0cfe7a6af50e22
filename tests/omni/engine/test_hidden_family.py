"""A model whose every token emits a hidden state, and readers of them: every row reaches its readers, once, whole, in order."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.omni.engine.hidden_engine import HiddenEngine
from tests.support.hidden_family import HOST_READER, READER, WRITER, write_checkpoint
from tests.support.tiers import few

pytestmark = pytest.mark.thorough

BOTH = (READER, HOST_READER)
PROMPTS = [[(7 * place * place + 11 * index) % 61 for place in range(3 + 4 * index)] for index in range(5)]
REQUESTS = [(prompt, range(0, len(prompt), 2)) for prompt in PROMPTS]
TOKENS = 11
FEW_BLOCKS = {"writer.num_blocks": 9, "writer.max_model_len": 32}
SMALL_BUDGET = {"writer.max_num_batched_tokens": 5}
NO_CACHE = {"writer.prefix_cache": False}
SLOW = {"reader.every": 7, "reader.max_num_seqs": 2, "host_reader.every": 5, "host_reader.max_num_seqs": 2}


@pytest.mark.parametrize("width", [64, 4096])
def test_rows_of_any_width_reach_both_readers(tmp_path: Path, width: int) -> None:
    engine = HiddenEngine(write_checkpoint(tmp_path, width=width, readers=BOTH))
    results = engine.submit_all(REQUESTS, TOKENS)
    engine.run()
    engine.expect_all(REQUESTS, results, TOKENS)


@pytest.mark.parametrize("in_flight", few(1, [4, 1, 2], pytest.mark.slow))
@pytest.mark.parametrize(
    "settings",
    [FEW_BLOCKS, SMALL_BUDGET, NO_CACHE, SLOW, FEW_BLOCKS | SMALL_BUDGET | SLOW, FEW_BLOCKS | NO_CACHE | SLOW],
    ids=[
        "few blocks",
        "small budget",
        "no cache",
        "slow",
        "few blocks, small budget, slow",
        "few blocks, no cache, slow",
    ],
)
def test_pressure_changes_nothing(tmp_path: Path, settings: Mapping[str, object], in_flight: int) -> None:
    engine = HiddenEngine(
        write_checkpoint(tmp_path, readers=BOTH),
        {**settings, "writer.max_in_flight": in_flight, "writer.block_size": 4},
    )
    results = engine.submit_all(REQUESTS, TOKENS)
    engine.run()
    engine.expect_all(REQUESTS, results, TOKENS)
    assert bool(engine.engine.counters()[WRITER]["preemptions"]) == ("writer.num_blocks" in settings)


def test_a_stop_token_s_own_row_comes_and_nothing_after_it(tmp_path: Path) -> None:
    engine = HiddenEngine(write_checkpoint(tmp_path, readers=BOTH), {"writer.max_in_flight": 4})
    prompt = PROMPTS[2]
    whole = engine.greedy(prompt, TOKENS)
    stop = whole[4]
    result = engine.submit("a", prompt, max_tokens=TOKENS, stop_token_ids=[stop])
    engine.run()
    assert result.tokens == whole[: whole.index(stop) + 1]
    assert result.reason == "stop"
    engine.expect(result, prompt)


def test_rows_of_prompts_alone(tmp_path: Path) -> None:
    engine = HiddenEngine(write_checkpoint(tmp_path, readers=BOTH, tokens=False))
    prompt, payload = REQUESTS[3]
    result = engine.submit("a", prompt, payload=payload, max_tokens=3)
    engine.run()
    for modality in ("read", "filed"):
        assert len(result.readings[modality]) == len(payload)
        assert all(reading.prompt for reading in result.readings[modality])


@pytest.mark.parametrize("reader", BOTH)
def test_a_slow_reader_delays_its_own_requests_and_stays_within_its_credit(tmp_path: Path, reader: str) -> None:
    credit = 4
    engine = HiddenEngine(write_checkpoint(tmp_path, readers=[reader], credit=credit), {f"{reader}.every": 40})
    modality = {READER: "read", HOST_READER: "filed"}[reader]
    heard = engine.submit("heard", PROMPTS[1], max_tokens=40)
    alone = engine.submit("alone", PROMPTS[2], max_tokens=40, modalities=frozenset({"text"}))
    ahead = []

    def look() -> bool:
        ahead.append(len(heard.tokens) - len(heard.readings.get(modality, [])))
        return alone.finished

    engine.run(until=look)
    assert len(heard.tokens) < 40, "it waits, and the other does not"
    engine.run(until=lambda: look() and False)
    buffered = 8 + 3 if reader == READER else 0
    assert max(ahead) <= credit + 4 + buffered
    engine.expect(heard, PROMPTS[1])
    assert alone.tokens == engine.greedy(PROMPTS[2], 40)
