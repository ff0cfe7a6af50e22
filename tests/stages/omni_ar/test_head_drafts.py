"""Trained heads in the steps of a stage: tokens do not change, and each draft is that of a head that reads the whole text."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import omni_text.model
from omni.parallel import Communicator
from omni.testing import SimulatedDevice
from omni.testing.simulation.late import LateDevice
from omni_ar.drafters import ModelDrafter
from omni_ar.kernels.step.draft_state import RATE_ONE
from omni_ar.layers.parallel import partitioned
from omni_ar.options import ArOptions
from omni_ar.run.plan import StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.run.scheduler import Scheduler
from tests.stages.omni_ar.head_rows import HeadRows
from tests.stages.omni_ar.small_drafts import ASKED, answers
from tests.support.ar_driver import ArDriver
from tests.support.ranks import on_ranks
from tests.support.tiers import chosen
from tests.support.trained_heads import KINDS, MOST, PROMPTS, Trained, trained

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("cheap_passes")]


def driver_of(head: Trained, device: Any = None, drafts: int = 0, captured: bool = False, **options: Any) -> ArDriver:
    given = {"max_num_seqs": 4, "block_size": 4, "max_model_len": 80, "adaptive_drafts": False, **options}
    drafter = head.drafter(drafts) if drafts else None
    chosen = ArOptions(**given, drafter="ngram" if drafts else None, draft_tokens=max(1, drafts))
    return ArDriver(head.setup.model, device, chosen, captured=captured, drafter=drafter)


TRAFFIC: dict[str, dict[str, Any]] = {
    "calm": {},
    "one at a time": {"max_num_seqs": 1},
    "chunks": {"max_num_batched_tokens": 6},
    "few blocks": {"num_blocks": 32, "max_model_len": 64},
    "captured": {"captured": True, "graph_batch_sizes": (2, 4), "graph_chunk_sizes": (8, 16)},
    "adaptive": {"adaptive_drafts": True},
}


@pytest.mark.parametrize(
    ("kind", "traffic", "drafts"),
    # Each traffic once; what differs between the kinds is in the head.
    chosen(
        [(KINDS[number % 2], each, 3) for number, each in enumerate(TRAFFIC)],
        itertools.product(KINDS, TRAFFIC, (3, 1, 5)),
    ),
)
def test_tokens_do_not_change(kind: str, traffic: str, drafts: int):
    head = trained(kind)
    plain = [text[len(prompt) :] for text, prompt in zip(head.texts, PROMPTS, strict=True)]
    driver = driver_of(head, drafts=drafts, **TRAFFIC[traffic])
    assert answers(driver, PROMPTS, max_tokens=MOST) == plain
    assert answers(driver, PROMPTS, max_tokens=MOST) == plain  # with a common prefix in the cache
    assert driver.counter("accepted_drafts") > 20


@pytest.mark.parametrize(
    ("kind", "drafts", "captured", "in_flight"),
    chosen(
        [("eagle3", 3, False, 3), ("mtp", 3, True, 3)],
        itertools.product(KINDS, (3, 1, 5), (False, True), (1, 3)),
    ),
)
def test_drafts_are_those_of_the_head_run_from_the_start(kind: str, drafts: int, captured: bool, in_flight: int):
    """Acceptance is that of a synchronous run, to the token, with several steps in flight."""
    head = trained(kind)
    expected = [head.counts(text, drafts) for text in range(len(PROMPTS))]
    assert 0.3 < sum(each[1] for each in expected) / sum(each[0] for each in expected) < 0.97
    device = LateDevice(in_flight, check=False)
    driver = driver_of(head, device, drafts, captured, max_in_flight=in_flight, prefix_cache=False)
    verified = accepted = 0
    for prompt, (tried, right) in zip(PROMPTS, expected, strict=True):
        answers(driver, [prompt], max_tokens=MOST)
        verified, accepted = verified + tried, accepted + right
        found = driver.counter("drafted_tokens"), driver.counter("accepted_drafts")
        assert found == (verified, accepted), prompt


@pytest.mark.parametrize(
    ("kind", "asked"),
    chosen([("eagle3", "bias and stop")], itertools.product(KINDS, ASKED)),
)
def test_acceptance_does_not_depend_on_the_steps_in_flight(kind: str, asked: str):
    """Whatever is asked. After `MOST` tokens the head has learned nothing, so that adaptive drafts cease."""
    head, found, most = trained(kind), list[list[dict[str, int]]](), MOST + 36
    plain = ArDriver(head.setup.model, options=ArOptions(max_num_seqs=4, block_size=4, max_model_len=80))
    texts = answers(plain, PROMPTS[:2], **ASKED[asked], max_tokens=most)
    for adaptive in (False, True):
        found.append([])
        for count in (1, 3, 8):
            given: dict[str, Any] = {"max_in_flight": count, "adaptive_drafts": adaptive}
            driver = driver_of(head, LateDevice(count, check=False), 3, **given)
            assert [answers(driver, [prompt], **ASKED[asked], max_tokens=most)[0] for prompt in PROMPTS[:2]] == texts
            found[-1].append({name: number for name, number in driver.worker.counters().items() if "draft" in name})
        assert all(each == found[-1][0] for each in found[-1])
    assert found[0][0]["drafted_tokens"] > 30


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_drafts_again_behind_steps_without_drafts(kind: str, monkeypatch: pytest.MonkeyPatch):
    """From new features: those of before are too far behind its newest token."""
    compose, head, seen = Scheduler._compose, trained(kind), list[tuple[int, int]]()
    driver = driver_of(head, drafts=3, max_in_flight=1)

    def in_turn(self: Scheduler, alone: ArRequest | None) -> StepPlan | None:
        for request in driver.worker.requests.values():
            request.gain_history.restart(0 if 5 <= len(request.outputs) < 10 else 3 * RATE_ONE)
        plan = compose(self, alone)
        if plan is not None:
            seen.extend((plan.drafts, request.drafts.steps) for request in plan.decodes)
        return plan

    monkeypatch.setattr(Scheduler, "_compose", in_turn)
    for text, prompt in zip(head.texts, PROMPTS, strict=True):
        seen.clear()
        assert answers(driver, [prompt], max_tokens=MOST) == [text[len(prompt) :]]
        without = [steps for drafts, steps in seen if not drafts]
        assert len(without) >= 2
        again = max(number for number, (drafts, _) in enumerate(seen) if not drafts) + 1
        assert seen[again][1] == seen[again + 1][1], "nothing to draft from in the first step that verifies drafts"
        assert seen[-1][1] > without[-1], "it does draft again"


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_head_drafts_within_its_own_positions(tmp_path: Path, adaptive: bool):
    """Published heads have fewer than their stage: rows that are longer have no drafts, and tokens do not change."""
    head, positions, drafts = trained("eagle3"), 20, 3
    folder = shutil.copytree(str(head.args["model"]), tmp_path / "head")
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": positions}
    (folder / "config.json").write_text(json.dumps(config))
    driver = driver_of(replace(head, args={"model": str(folder)}), drafts=drafts, adaptive_drafts=adaptive)
    counts = [head.counts(text, drafts, positions) for text in range(len(PROMPTS))]
    assert counts != [head.counts(text, drafts) for text in range(len(PROMPTS))]
    for number, prompt in enumerate(PROMPTS):
        expected = head.texts[number][len(prompt) :]
        assert answers(driver, [prompt], max_tokens=MOST) == [expected]
    found = driver.counter("drafted_tokens"), driver.counter("accepted_drafts")
    most = tuple(map(sum, zip(*counts, strict=True)))
    assert 0 < found[0] <= most[0] if adaptive else found == most


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_whole_where_the_stage_is_cut(kind: str):
    """Each rank makes the same drafts, with the embeddings and the output matrix of all ranks."""
    head = trained(kind)

    def work(communicator: Communicator) -> list[list[int]]:
        context = head.setup.context
        with partitioned(communicator):
            model = omni_text.model.build(context)
        assert model.embed_tokens.num_embeddings == 49
        drafter = replace(head, setup=replace(head.setup, model=model)).drafter(3)
        assert drafter.weight_bytes == head.drafter(3).weight_bytes
        width, vocab = head.states[0].shape[1], head.setup.vocab_size
        rows = HeadRows(drafter, head.reference, vocab=vocab, width=width, drafts=3)
        rows.run(3)
        return rows.step([0, 1, 2], [0, 0, 0])

    first, second = on_ranks(2, work)
    assert first == second


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_prefix_does_not_change_drafts(kind: str):
    """The last entry of a block is made of the token behind the block too, which another request need not share."""
    head, text = trained(kind), trained(kind).texts[0][:20]
    others = [[*text[: 4 * blocks], 77, 78, 79, 80, 81, 82] for blocks in (1, 2, 3)]
    seen = []
    for cached in (False, True):
        driver = driver_of(head, drafts=3, prefix_cache=cached, max_in_flight=1)
        hidden = kept_hidden(driver)
        for prompt in [text, *others, *others[::-1], text[:18]]:
            answers(driver, [prompt], max_tokens=5)
        seen.append(hidden)
    assert driver.counter("cached_tokens") > 50
    assert len(seen[0]) > 40
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def kept_hidden(driver: ArDriver) -> list[Tensor]:
    """Hidden states before each draft, from now on."""
    drafter = driver.runner._drafter
    assert isinstance(drafter, ModelDrafter)
    hidden: list[Tensor] = []
    propose = drafter._model.propose

    def keep(hidden_RD: Tensor) -> Tensor:
        hidden.append(hidden_RD.clone())
        return propose(hidden_RD)

    drafter._model.propose = keep  # type: ignore[method-assign]
    return hidden


@pytest.mark.parametrize(("kind", "seed"), chosen([("mtp", 1)], itertools.product(KINDS, range(8))))
def test_no_race_on_a_simulated_device(kind: str, seed: int):
    head, device = trained(kind), SimulatedDevice(seed)
    more: dict[str, Any] = {"adaptive_drafts": bool(seed % 2)}
    driver = driver_of(
        head, device, 3, max_in_flight=1 + seed % 4, **more, **TRAFFIC["chunks" if seed % 3 else "few blocks"]
    )
    plain = [text[len(prompt) :] for text, prompt in zip(head.texts, PROMPTS, strict=True)]
    assert answers(driver, PROMPTS, max_tokens=MOST) == plain
    device.assert_no_races()
