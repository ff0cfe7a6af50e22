"""A model as a drafter: the keys and values that it needs are those of the text, whatever the traffic."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omni.device import CpuDevice
from omni.sampling import HostRules, StopVerdict
from omni.testing import SimulatedDevice
from omni.testing.simulation.late import LateDevice
from omni.utils.draft_counts import DraftCounts
from omni_ar.attention import AttentionMetadata, KVCache, TorchPagedAttention
from omni_ar.drafters import CacheShape, DraftChunks, DraftModel, DraftRows, FeatureShape, ModelDrafter, RowPages
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.kernels.step.state import RowFields
from omni_ar.model import Batch
from omni_ar.run.phases import drop_features
from tests.stages.omni_ar.small_drafts import ASKED, MODEL, MOST, PROMPTS, answers, driver_of
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText, greedy
from tests.support.tiers import SLOW, chosen, few

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("cheap_passes")]

OTHER = SmallText(vocab=11, positions=160)
"""Nearly the stage's model: its likeliest ids often are, and often are not, those of the stage."""
with torch.no_grad():
    OTHER.head.add_(torch.randn(OTHER.head.shape, generator=torch.Generator().manual_seed(4)), alpha=0.15)


def drafted(model: SmallText, device: Any = None, drafts: int = 3, **options: Any) -> ArDriver:
    made = ModelDrafter(ArDraftModel(model, 11), drafts)
    options = {"adaptive_drafts": False, "draft_tokens": drafts, **options}
    return driver_of("ngram", device, made=made, **options)


TRAFFIC: dict[str, dict[str, Any]] = {
    "calm": {},
    "one at a time": {"max_num_seqs": 1},
    "chunks": {"max_num_batched_tokens": 6},
    "few blocks": {"num_blocks": 24, "max_model_len": 64},
    "few blocks, chunks": {"num_blocks": 24, "max_model_len": 64, "max_num_batched_tokens": 6},
    "no prefix cache": {"prefix_cache": False},
    "captured": {"captured": True, "graph_batch_sizes": (2, 4), "graph_chunk_sizes": (8, 16)},
    "to the last position": {"max_model_len": 42, "num_blocks": 40},
    "captured, chunks": {"captured": True, "max_num_batched_tokens": 6, "graph_chunk_sizes": (4, 6)},
}


@pytest.mark.parametrize(
    ("traffic", "in_flight", "drafts"),
    # Once each, by turns with one draft, whose entry is always new, and three.
    chosen(
        [(each, 2, (3, 1)[number % 2]) for number, each in enumerate(TRAFFIC)],
        itertools.product(TRAFFIC, (2, 1, 4, 8), (1, 3, 2, 5, 8)),
    ),
)
def test_the_stage_s_own_model_is_always_right(traffic: str, in_flight: int, drafts: int):
    """A key or value that is missing or wrong would change its drafts."""
    options = TRAFFIC[traffic]
    plain = answers(driver_of(**{key: value for key, value in options.items() if "graph" not in key}))
    driver = drafted(MODEL, drafts=drafts, max_in_flight=in_flight, **options)
    assert answers(driver) == plain
    assert answers(driver) == plain  # with a common prefix in the cache
    assert driver.counter("accepted_drafts") == driver.counter("drafted_tokens") > 100
    if traffic.startswith("few blocks"):
        assert driver.counter("preemptions") > 0


class AfterTokens:
    """A stop string that the `count`-th token completes."""

    def __init__(self, count: int) -> None:
        self._left = count

    def push(self, token: int) -> StopVerdict:
        self._left -= 1
        return StopVerdict(0, self._left == 0)


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("ends", ["max_tokens", "stop id", "stop string"])
def test_the_last_token_of_a_request_counts_as_no_draft(ends: str, in_flight: int):
    """The model is always right, so that a step gives nine tokens, or the remaining ones."""
    prompt, most = PROMPTS[0], 24
    text = greedy(MODEL, prompt, most)
    totals, before = Counter[str](), Counter[str]()
    driver = drafted(MODEL, LateDevice(in_flight, check=False), 8, max_in_flight=in_flight, prefix_cache=False)
    lengths = [length for length in range(1, most) if ends != "stop id" or text[length - 1] not in text[: length - 1]]
    for length in lengths:
        sampling: dict[str, Any] = {"max_tokens": length if ends == "max_tokens" else 2 * most}
        if ends == "stop id":
            sampling["stop_token_ids"] = (text[length - 1],)
        rules = HostRules(stops=AfterTokens(length)) if ends == "stop string" else HostRules()
        driver.ask(str(length), prompt, sampling, rules=rules)
        driver.run()
        assert driver.tokens(str(length)) == text[:length]
        done, (full, left) = driver.done(str(length)), divmod(length - 1, 9)
        assert done.reason == ("length" if ends == "max_tokens" else "stop")
        counts = DraftCounts.of(done.counts)
        accepted = 8 * full + max(left - 1, 0)
        assert (sum(counts.drafted), sum(counts.accepted), counts.steps) == (accepted, accepted, full + (left > 1))
        if left > 1 and not full:
            assert counts.mean_length == left
        totals += Counter(counts.numbers())
        now = Counter(driver.worker.counters())
        if in_flight == 1:  # otherwise steps behind the end are under way
            dropped = (9 - left) % 9 if ends == "stop string" else 0
            assert now["discarded_tokens"] - before["discarded_tokens"] == (dropped if length > 1 else 0)
            assert now["decode_tokens"] - before["decode_tokens"] == length - 1 + (dropped if length > 1 else 0)
        before = now
    assert len(lengths) > 3
    assert totals == +Counter(DraftCounts.of(before).numbers())


def counts(prompt: Sequence[int], drafts: int) -> tuple[list[int], int, int]:
    """Tokens, verified and accepted drafts of a request alone, everything recomputed for each step."""
    made, verified, accepted = greedy(MODEL, prompt, 1), 0, 0
    while len(made) < MOST:
        count = min(drafts, MOST - len(made) - 1)
        guesses = greedy(OTHER, [*prompt, *made], count) if count else []
        true = greedy(MODEL, [*prompt, *made], count + 1)
        matched = next((at for at, guess in enumerate(guesses) if guess != true[at]), count)
        verified, accepted = verified + count, accepted + matched
        made += true[: matched + 1]
    return made, verified, accepted


@pytest.mark.parametrize(
    ("drafts", "captured", "in_flight"),
    chosen([(3, False, 5), (3, True, 2)], itertools.product((3, 1, 4, 8), (False, True), (1, 2, 5, 8))),
)
def test_drafts_are_those_of_the_model_run_from_the_start(drafts: int, captured: bool, in_flight: int):
    """Acceptance is that of a synchronous run, to the token, with several steps in flight."""
    expected = [counts(prompt, drafts) for prompt in PROMPTS]
    # Of eight drafts the later ones are seldom right.
    assert 0.1 < sum(each[2] for each in expected) / sum(each[1] for each in expected) < 0.95
    device = LateDevice(in_flight, check=False)
    driver = drafted(OTHER, device, drafts, max_in_flight=in_flight, captured=captured, prefix_cache=False)
    verified = accepted = 0
    for prompt, (made, tried, right) in zip(PROMPTS, expected, strict=True):
        assert answers(driver, [prompt]) == [made]
        verified, accepted = verified + tried, accepted + right
        found = driver.counter("drafted_tokens"), driver.counter("accepted_drafts")
        assert found == (verified, accepted), prompt


@pytest.mark.parametrize("asked", few(1, ["penalties", *(each for each in ASKED if each != "penalties")], SLOW))
def test_acceptance_does_not_depend_on_the_steps_in_flight(asked: str):
    """Whatever is asked. Requests alone: beside others, steps with their prompts have no drafts."""
    plain, found = driver_of(), list[list[dict[str, int]]]()
    texts = [answers(plain, [prompt], **ASKED[asked], max_tokens=30) for prompt in PROMPTS[:3]]
    for adaptive in (False, True):
        found.append([])
        for count in (1, 3, 8):
            given = {"max_in_flight": count, "adaptive_drafts": adaptive}
            driver = drafted(OTHER, LateDevice(count, check=False), 3, **given)
            assert [answers(driver, [prompt], **ASKED[asked], max_tokens=30) for prompt in PROMPTS[:3]] == texts
            found[-1].append({name: number for name, number in driver.worker.counters().items() if "draft" in name})
        assert all(each == found[-1][0] for each in found[-1])
    assert found[0][0]["accepted_drafts"] > 0


RACED = ("few blocks, chunks", "captured, chunks")


@pytest.mark.parametrize(
    ("traffic", "seed"),
    # A seed each of the hardest; the number of steps in flight follows the seed.
    chosen(((each, 1 + n % 3) for n, each in enumerate(RACED)), itertools.product(TRAFFIC, range(12))),
)
def test_no_race_on_a_simulated_device(traffic: str, seed: int):
    device = SimulatedDevice(seed)
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": MOST if seed > 3 else 16}
    driver = drafted(OTHER, device, 3, max_in_flight=1 + seed % 4, adaptive_drafts=bool(seed % 2), **TRAFFIC[traffic])
    plain = answers(driver_of(max_model_len=TRAFFIC[traffic].get("max_model_len")), **sampling)
    assert answers(driver, **sampling) == plain
    assert driver.counter("drafted_tokens") > 0
    device.assert_no_races()


def test_rows_that_want_no_drafts_do_without_the_model(monkeypatch: pytest.MonkeyPatch):
    runs: list[int] = []
    wrong = SmallText(vocab=11, positions=160)
    real = ArDraftModel.forward
    monkeypatch.setattr(ArDraftModel, "propose", lambda self, hidden: self.model.logits(hidden).argmin(-1))

    def counted(self: ArDraftModel, *given: Any) -> torch.Tensor:
        runs.append(len(runs))
        return real(self, *given)

    monkeypatch.setattr(ArDraftModel, "forward", counted)
    driver = drafted(wrong, drafts=3, adaptive_drafts=True)
    assert answers(driver, PROMPTS[:1], max_tokens=100) == answers(driver_of(), PROMPTS[:1], max_tokens=100)
    assert driver.counter("accepted_drafts") == 0
    assert 1 < len(runs) < 80  # three passes a step would be 300


class Feature(DraftModel):
    """Proposes the token in the feature of the token before. Runs no model."""

    cache_shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=2)
    feature_shape = FeatureShape(layers=(0,), width=1)

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[list[int]] = []

    def forward(self, ids_T: torch.Tensor, features_TH: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        self.slots.append(batch.attention.slots_T.tolist())
        assert features_TH is not None
        return features_TH

    def propose(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        return hidden_RD[:, 0].long()


def feature_rows(first_N: torch.Tensor) -> DraftRows:
    """Two rows of six tokens, and the null row."""
    fields = RowFields(last=0, length=5, delta=0, outputs=1, limit=9, active=1, row=0, counted=0)
    return DraftRows(
        rows_R=torch.tensor([0, 1]),
        text_NL=torch.arange(9, dtype=torch.int32).expand(3, -1),
        length_N=torch.tensor([5, 5, 0]),
        drafts_NK=torch.zeros(3, 2, dtype=torch.int64),
        proposed_N=torch.zeros(3, dtype=torch.int64),
        pages=RowPages(
            cache=KVCache.allocate(CpuDevice().zeros, 1, 9, 4, 1, 2, torch.float32),
            backend=TorchPagedAttention(),
            columns=RowFields(*torch.tensor([fields] * 3).unbind(1)),
            block_table_NM=torch.tensor([[1, 2, 3], [4, 5, 6], [0, 0, 0]]),
            blocks=3,
            features_NJH=torch.arange(9.0).view(3, 3, 1),
            first_N=first_N,
        ),
    )


def test_features_from_before_a_step_without_drafts_make_no_draft():
    """They may be of rejected drafts."""
    first_N, model = torch.tensor([3, 3, 0]), Feature()
    rows = feature_rows(first_N)
    drop_features(torch.tensor([1]), first_N)
    ModelDrafter(model, 2).draft(rows)
    assert rows.proposed_N.tolist() == [2, 0, 0]
    assert rows.drafts_NK[0].tolist() == [1, 1]
    # Tokens 3 and 4 of the first row have features behind which a token stands; the first draft's entry is the fifth.
    assert model.slots == [[7, 8, 0, 0, 0, 0], [9, 0]]


@pytest.mark.parametrize(("positions", "proposed"), [(3, 0), (4, 0), (5, 1), (6, 2), (9, 2)])
def test_a_model_drafts_up_to_its_last_position(positions: int, proposed: int, monkeypatch: pytest.MonkeyPatch):
    """Behind it, none. The newest entry of the rows is the fifth."""
    monkeypatch.setattr(Feature, "max_positions", positions)
    rows = feature_rows(torch.tensor([3, 3, 0]))
    ModelDrafter(Feature(), 2).draft(rows)
    assert rows.proposed_N.tolist() == [proposed, proposed, 0]


class KeepsInputs(DraftModel):
    """Keeps the ids and positions that it is given."""

    cache_shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=2)
    ids: list[int]
    positions: list[int]

    def forward(self, ids_T: torch.Tensor, features_TH: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        self.ids, self.positions = ids_T.tolist(), batch.positions_PT[0].tolist()
        return torch.zeros(len(ids_T), 1)

    def propose(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        raise AssertionError


def test_decode_rows_beside_chunks_keep_their_newest_tokens():
    """Their next step writes these keys again, unless the row ends with it: then a cached block may have them."""
    meta = AttentionMetadata(
        slots_T=torch.tensor([7, 0, 20, 21, 22, 0]),
        num_decode=2,
        decode_block_table_RM=torch.tensor([[1], [0]]),
        decode_lengths_R=torch.tensor([4, 0]),
        decode_max_length=4,
    )
    chunks = DraftChunks(
        batch=Batch(
            positions_PT=torch.full((1, 6), 99),
            attention=meta,
            cache=KVCache.allocate(CpuDevice().zeros, 1, 9, 4, 1, 2, torch.float32),
            backend=TorchPagedAttention(),
            prompt_start=2,
        ),
        rows_P4=torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]),
        ids_R=torch.tensor([5, 6]),
        lengths_R=torch.tensor([4, 0]),
        text_NL=torch.arange(20, 38, dtype=torch.int32).view(2, 9),
        features_TH=None,
    )
    model = KeepsInputs()
    ModelDrafter(model, 2).prefill(chunks)
    assert model.ids == [5, 6, 33, 34, 35, 20]
    assert model.positions == [3, 0, 4, 5, 6, 0]
