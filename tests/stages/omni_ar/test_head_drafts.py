"""Trained heads in the steps of a stage: tokens do not change, and each draft is that of a head that sees the whole text."""

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

import omni_text.model
from omni.parallel import Communicator
from omni.testing import SimulatedDevice
from omni.testing.simulation.late import LateDevice
from omni_ar.drafters import DraftSetup, ModelDrafter
from omni_ar.drafters.eagle3 import Eagle3Drafter
from omni_ar.drafters.mtp import MtpDrafter
from omni_ar.layers.parallel import partitioned
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.head_rows import HeadRows
from tests.support.ranks import on_ranks
from tests.support.small_drafts import answers
from tests.support.tiers import SLOW, few
from tests.support.tiny_heads import Eagle3Reference, MtpReference, add_mtp, eagle3_head, setup_of, write_stage

pytestmark = pytest.mark.thorough

MOST, STEPS = 24, {"eagle3": 45, "mtp": 20}
PROMPTS = (
    [1, 2, 3, 4, 1, 2, 3, 4, 1, 2],
    [5, 6, 7],
    [8, 9, 10, 8, 9, 10, 8],
    [3] * 9,
    [2],
    [5, 6, 7, 11, 12, 13, 14, 15, 16],
)


@dataclass
class Trained:
    """A stage and a head that often is right. texts: prompts with their greedy outputs. states: of each text, those it reads."""

    setup: DraftSetup
    reference: Eagle3Reference | MtpReference
    args: dict[str, Any]
    texts: list[list[int]]
    states: list[Tensor]

    def drafter(self, drafts: int) -> ModelDrafter:
        kind = Eagle3Drafter if isinstance(self.reference, Eagle3Reference) else MtpDrafter
        with torch.inference_mode():
            return kind(self.args, replace(self.setup, drafts=drafts))

    def drafts(self, text: int, known: int, count: int) -> list[int]:
        """Behind the first `known` tokens of a text, everything recomputed."""
        ids, reference = self.texts[text][1:known], self.reference
        features_TD = reference.features(self.states[text][: known - 1])
        made: list[int] = []
        for _ in range(count):
            hidden_D = reference.hidden(torch.tensor(ids + made), features_TD)[-1]
            made.append(reference.likeliest(hidden_D))
            features_TD = torch.cat((features_TD, hidden_D[None]))
        return made

    def counts(self, text: int, drafts: int) -> tuple[int, int]:
        """Verified and accepted drafts of a request alone."""
        ids, start = self.texts[text], len(PROMPTS[text])
        made, verified, accepted = 1, 0, 0
        while made < MOST:
            room = min(drafts, MOST - made - 1)
            guesses = self.drafts(text, start + made, room) if room else []
            true = ids[start + made :]
            matched = next((at for at, guess in enumerate(guesses) if guess != true[at]), room)
            verified, accepted, made = verified + room, accepted + matched, made + matched + 1
        return verified, accepted


@functools.cache
def trained(kind: str, folder: Path) -> Trained:
    """The head learns the texts by heart, not quite."""
    stage = write_stage(folder / "stage", 1, layers=8, hidden_size=48, tie_word_embeddings=False)
    published = Qwen3ForCausalLM.from_pretrained(stage).eval()
    texts, states = [], []
    with torch.no_grad():
        for prompt in PROMPTS:
            ends: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "do_sample": False}
            ids = published.generate(torch.tensor([prompt]), max_new_tokens=MOST, **ends)
            found = published(ids, output_hidden_states=True).hidden_states
            texts.append(ids[0].tolist())
            states.append(torch.cat([found[layer][0] for layer in ((2, 4, 5) if kind == "eagle3" else (8,))], 1))
    weights = load_file(stage / "model.safetensors")
    embedding_VD, output_VD = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    args: dict[str, Any] = {}
    if kind == "eagle3":
        head = eagle3_head(stage, draft_size=89)
        learned = head.weights
        reference: Any = Eagle3Reference(head, embedding_VD, learned["lm_head.weight"])
    else:
        learned = add_mtp(stage)
        reference = MtpReference(learned, json.loads((stage / "config.json").read_text()), embedding_VD, output_VD)
    _train(reference, learned, texts, states, STEPS[kind])
    if kind == "eagle3":
        args["model"] = str(head.write(folder / "head"))
    else:
        save_file(weights | {f"mtp.{name}": each for name, each in learned.items()}, stage / "model.safetensors")
    return Trained(setup_of(stage), reference, args, texts, states)


def _train(
    reference: Any, weights: dict[str, Tensor], texts: list[list[int]], states: list[Tensor], steps: int
) -> None:
    floats = [each.requires_grad_() for each in weights.values() if each.is_floating_point()]
    optimizer = torch.optim.Adam(floats, lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        for ids, states_TX in zip(texts, states, strict=True):
            hidden_TD = reference.hidden(torch.tensor(ids[1:]), reference.features(states_TX[:-1]))
            later_TD = reference.hidden(torch.tensor(ids[2:]), hidden_TD[:-1])
            loss = reference.loss(hidden_TD[:-1], torch.tensor(ids[2:]))
            (loss + reference.loss(later_TD[:-1], torch.tensor(ids[3:]))).backward()
        optimizer.step()
    for each in floats:
        each.requires_grad_(False)


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By kind."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    return lambda kind: trained(kind, folders[kind])


KINDS = ("eagle3", "mtp")


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("traffic", TRAFFIC)
@pytest.mark.parametrize("drafts", few(1, [3, 1, 5], SLOW))
def test_tokens_do_not_change(kind: str, traffic: str, drafts: int, heads: Any):
    head = heads(kind)
    plain = [text[len(prompt) :] for text, prompt in zip(head.texts, PROMPTS, strict=True)]
    driver = driver_of(head, drafts=drafts, **TRAFFIC[traffic])
    assert answers(driver, PROMPTS, max_tokens=MOST) == plain
    assert answers(driver, PROMPTS, max_tokens=MOST) == plain  # with a common prefix in the cache
    assert driver.counter("accepted_drafts") > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafts", few(1, [3, 1, 5], SLOW))
@pytest.mark.parametrize("captured", [False, True])
def test_drafts_are_those_of_the_head_run_from_the_start(kind: str, drafts: int, captured: bool, heads: Any):
    """Acceptance is that of a synchronous run, to the token, with several steps in flight."""
    head = heads(kind)
    expected = [head.counts(text, drafts) for text in range(len(PROMPTS))]
    assert 0.3 < sum(each[1] for each in expected) / sum(each[0] for each in expected) < 0.97
    for in_flight in (1, 3):
        device = LateDevice(in_flight, check=False)
        driver = driver_of(head, device, drafts, captured, max_in_flight=in_flight, prefix_cache=False)
        verified = accepted = 0
        for prompt, (tried, right) in zip(PROMPTS, expected, strict=True):
            answers(driver, [prompt], max_tokens=MOST)
            verified, accepted = verified + tried, accepted + right
            found = driver.counter("drafted_tokens"), driver.counter("accepted_drafts")
            assert found == (verified, accepted), (in_flight, prompt)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_whole_where_the_stage_is_cut(kind: str, heads: Any):
    """Each rank makes the same drafts, with the embeddings and the output matrix of all ranks."""
    head = heads(kind)

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
def test_a_cached_prefix_does_not_change_drafts(kind: str, heads: Any):
    """The last entry of a block is made of the token behind the block too, which another request need not share."""
    head, text = heads(kind), heads(kind).texts[0][:20]
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", few(2, range(8), SLOW))
def test_no_race_on_a_simulated_device(kind: str, seed: int, heads: Any):
    head, device = heads(kind), SimulatedDevice(seed)
    more: dict[str, Any] = {"adaptive_drafts": bool(seed % 2)}
    driver = driver_of(
        head, device, 3, max_in_flight=1 + seed % 4, **more, **TRAFFIC["chunks" if seed % 3 else "few blocks"]
    )
    plain = [text[len(prompt) :] for text, prompt in zip(head.texts, PROMPTS, strict=True)]
    assert answers(driver, PROMPTS, max_tokens=MOST) == plain
    device.assert_no_races()
