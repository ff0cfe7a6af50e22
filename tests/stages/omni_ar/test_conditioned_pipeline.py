"""A writer whose hidden states condition the steps of an answerer: its tokens equal those of a plain loop, under any pressure."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from omni.device import Device, SyncCheck, open_device, sync_guard
from omni.sampling import HostRules, SamplingParams
from omni.testing import SimulatedDevice
from omni.testing.engines import GIVEN_UP, TickedEngine
from tests.support.conditioned import (
    ANSWER,
    ANSWERER,
    TEXT,
    WRITER,
    answer,
    ask,
    conditioned_plugins,
    write_checkpoint,
)
from tests.support.devices import full_float32, no_synchronization
from tests.support.received import Received
from tests.support.small_text import TwoInARow
from tests.support.tiers import SLOW, few

WRITTEN = [[(5 * place + 3 * index) % 61 for place in range(1 + 3 * index)] for index in range(4)]
HEARD = [[(7 * place + index) % 53 for place in range(6 - index)] for index in range(4)]
WRITES, ANSWERS = 11, 14
FEW_BLOCKS = {
    "writer.num_blocks": 9,
    "writer.max_model_len": 27,
    "answerer.num_blocks": 9,
    "answerer.max_model_len": 27,
}
TIGHT = {"writer.max_num_seqs": 1, "answerer.max_num_seqs": 1}


def build(
    folder: Path,
    settings: Mapping[str, object] = {},
    device: Device | None = None,
    *,
    credit: int = 64,
    graphs: bool = False,
) -> TickedEngine:
    return TickedEngine(write_checkpoint(folder, credit), conditioned_plugins(), settings, device, graphs=graphs)


def submit(
    engine: TickedEngine,
    index: int,
    *,
    from_frontend: bool = False,
    priority: int = 0,
    rules: HostRules | None = None,
    writes: int = WRITES,
    answers: int = ANSWERS,
) -> Received:
    sampling = {WRITER: SamplingParams(max_tokens=writes), ANSWERER: SamplingParams(max_tokens=answers)}
    heard, name = Received(), str(index)
    request = ask(
        name,
        WRITTEN[index],
        HEARD[index],
        from_frontend=from_frontend,
        priority=priority,
        sampling=sampling,
        rules=rules,
    )
    engine.engine.submit(request, heard.take)
    return heard


def tick(engine: TickedEngine, times: int) -> None:
    for _ in range(times):
        engine.tick()


def expect(results: Sequence[Received]) -> None:
    for index, heard in enumerate(results):
        assert heard.error is None, heard.error
        # The hidden state of the last token that was given out is the one that the first withheld was sampled from.
        withheld = [0] if heard.ends[WRITER][0] == "stop" else []
        assert heard.exact[ANSWER] == answer(WRITTEN[index], [*heard.tokens, *withheld], HEARD[index], ANSWERS)


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize(
    ("settings", "credit", "graphs"),
    [({}, 64, True), (FEW_BLOCKS, 64, False), (FEW_BLOCKS, 1, True)],
    ids=["enough blocks, captured", "few blocks", "few blocks, credit of 1, captured"],
)
def test_answers_are_those_of_a_plain_loop(
    tmp_path: Path, settings: Mapping[str, object], credit: int, graphs: bool, ahead: int
) -> None:
    in_flight = {"writer.max_in_flight": ahead, "answerer.max_in_flight": ahead}
    engine = build(tmp_path, {**settings, **in_flight}, credit=credit, graphs=graphs)
    results = []
    for index in range(4):
        results.append(submit(engine, index, from_frontend=index % 2 == 0))
        tick(engine, 5)
    engine.run_to_end()
    expect(results)
    assert [len(heard.exact[TEXT]) for heard in results] == [WRITES] * 4
    assert (engine.engine.counters()[ANSWERER]["preemptions"] > 0) == bool(settings)


def test_one_row_a_credit_of_one_and_later_requests_first(tmp_path: Path) -> None:
    """The request with the answerer's row needs a row of the writer: the request with that one must not be paused meanwhile."""
    engine = build(tmp_path, TIGHT, credit=1)
    results = []
    for index in range(4):
        results.append(submit(engine, index, from_frontend=True, priority=-index))
        tick(engine, 3)
    engine.run_to_end()
    expect(results)


@pytest.mark.parametrize("seed", few(2, [1, 2, 0], SLOW))
def test_a_producer_that_stalls_delays_its_answerers_and_nothing_else(tmp_path: Path, seed: int) -> None:
    device = SimulatedDevice(seed)
    engine = build(tmp_path, [{}, FEW_BLOCKS, TIGHT][seed], device, credit=(64, 3, 1)[seed], graphs=seed == 1)
    device.synchronize()
    simulation = engine.simulate()
    results: dict[int, Received] = {}
    for index in range(4):
        simulation.at(12 * index, lambda i=index: results.setdefault(i, submit(engine, i)))  # type: ignore[misc]
    for round_, stream in ((5, "answerer"), (40, "writer"), (70, "answerer"), (100, "writer")):
        simulation.at(round_, lambda s=stream: device.stall(s, 1.0))  # type: ignore[misc]
    simulation.run()
    engine.assert_free()
    expect([results[index] for index in range(4)])
    device.assert_no_races()


def test_tokens_that_were_withheld_are_not_heard(tmp_path: Path) -> None:
    """Texts that end in a stop string, each token withheld until it is certain: every token given out conditions a step."""
    engine = build(tmp_path)
    even = frozenset(range(0, 61, 2))
    results = [submit(engine, index, rules=HostRules(stops=TwoInARow(even))) for index in range(4)]
    engine.run_to_end()
    expect(results)
    assert any(heard.ends[WRITER][0] == "stop" for heard in results)


def test_the_longest_text_conditions_a_answerer_of_any_length_to_its_end(tmp_path: Path) -> None:
    for limits in ((20, 40), (40, 20)):
        engine = build(tmp_path, dict(zip(("writer.max_model_len", "answerer.max_model_len"), limits, strict=True)))
        results = [submit(engine, index, writes=96, answers=96) for index in range(4)]
        engine.run_to_end()
        for index, heard in enumerate(results):
            written, answers = (limit - len(ids[index]) for limit, ids in zip(limits, (WRITTEN, HEARD), strict=True))
            assert len(heard.tokens) == written
            assert heard.exact[ANSWER] == answer(WRITTEN[index], heard.tokens, HEARD[index], answers)


def test_a_request_that_leaves_holds_nothing(tmp_path: Path) -> None:
    engine = build(tmp_path, TIGHT, credit=2)
    results = [submit(engine, index) for index in range(4)]
    tick(engine, 8)
    engine.leave("0")
    engine.leave("2")
    engine.run_to_end()
    assert [heard.error for heard in results] == [GIVEN_UP, None, GIVEN_UP, None]
    assert results[1].exact[ANSWER] == answer(WRITTEN[1], results[1].tokens, HEARD[1], ANSWERS)


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("ahead", [2, pytest.param(4, marks=pytest.mark.gpu)])
def test_nothing_waits_for_the_device(tmp_path: Path, name: str, graphs: bool, ahead: int) -> None:
    device = open_device(name)
    in_flight = {"writer.max_in_flight": ahead, "answerer.max_in_flight": ahead}
    block_size = {"writer.block_size": 4, "answerer.block_size": 4}
    refused = no_synchronization() if name == "cuda" else nullcontext()
    with full_float32():
        engine = build(tmp_path, in_flight | block_size, device, graphs=graphs)
        with sync_guard(device, SyncCheck.ERROR), refused:
            results = [submit(engine, index) for index in range(4)]
            engine.run_to_end()
    expect(results)
