"""Tokens of tiny dense and MoE models in float32, eager and captured, batched and padded: those of the CPU for each alone.

On the CPU a captured step is the list of its launches, so the cases run there too; most of them on a GPU only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from omni.device import open_device
from tests.support.close_calls import Choice, Comparison, WatchedCpu
from tests.support.tiny_text import VOCAB, TextEngine, write_noisy_model, write_text_model

KINDS = ("tied", "untied", "moe", "window")
TOKENS = 24
PROMPTS = [[(31 * index + 11 * place + place * place) % VOCAB for place in range(1 + 5 * index)] for index in range(8)]
SAMPLING: list[dict[str, object]] = [
    {},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.01, "seed": 3},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    {"temperature": 1.1, "seed": 5, "logit_bias": {3: 2.0, 9: -50.0}, "bad_words_ids": ((44,), (17, 3))},
    {"allowed_token_ids": tuple(range(0, VOCAB, 3)), "min_tokens": 6, "stop_token_ids": tuple(range(0, VOCAB, 15))},
    {"temperature": 1.0, "seed": 6, "suppress_token_ids": (5, 7), "stop_token_ids": (1, 2)},
    {"temperature": 0.7, "top_p": 0.8, "seed": 7},
    {},
]


@dataclass(frozen=True, slots=True)
class Case:
    """graphs: whether steps are captured. apart: ticks between two requests. settings: of the stage. rounds: number of times that
    all ask."""

    name: str
    graphs: bool = True
    apart: int = 2
    settings: Mapping[str, object] | None = None
    rounds: int = 1

    def overrides(self, folder: Path) -> dict[str, object]:
        """folder: of the checkpoint; that of a drafter is beside it."""
        settings = dict(self.settings or {})
        if settings.get("drafter") == "draft_model":
            settings["drafter_args"] = {"model": str(folder / "other")}
        return {f"text.{name}": value for name, value in settings.items()}


FEW_BLOCKS = {"num_blocks": 22, "block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 9}
CASES = [
    Case("eager, one batch", graphs=False, apart=0),
    Case("eager, two rows", graphs=False, settings={"max_num_seqs": 2}),
    Case("eager, plain attention", graphs=False, settings={"attention_backend": "torch"}),
    Case("captured, one batch", apart=0),
    Case("captured, two rows", settings={"max_num_seqs": 2}),
    Case("captured, padded", settings={"max_num_seqs": 9, "graph_batch_sizes": (9,), "graph_chunk_sizes": (200,)}),
    Case("captured but for large batches", settings={"graph_batch_sizes": (1, 3), "graph_chunk_sizes": (4,)}),
    Case("captured but for prompts", settings={"graph_chunk_sizes": ()}),
    Case("captured, plain attention", settings={"attention_backend": "torch"}),
    Case("captured, synchronous", settings={"max_in_flight": 1}),
    Case("captured, four ahead", settings={"max_in_flight": 4}),
    Case("captured, synchronous, few blocks", settings={"max_in_flight": 1, **FEW_BLOCKS}),
    Case("captured, four ahead, few blocks", settings={"max_in_flight": 4, **FEW_BLOCKS}),
]
OWN_TEXT = {"drafter": "ngram", "drafter_args": {"fewest": 1}}
TOLD = {"drafter": "fabricated", "drafter_args": {"rate": 0.8}}
DRAFTED = [
    Case("drafts, eager", graphs=False, settings={**OWN_TEXT, "draft_tokens": 4}, rounds=2),
    Case("drafts, captured", settings={**TOLD, "adaptive_drafts": False}, rounds=2),
    Case("drafts, captured, padded", settings={**TOLD, "max_num_seqs": 9, "graph_batch_sizes": (9,)}, rounds=2),
    Case("drafts of its own text, captured, four ahead", settings={**OWN_TEXT, "max_in_flight": 4}, rounds=2),
    Case("drafts, plain attention", settings={**TOLD, "attention_backend": "torch", "draft_tokens": 1}, rounds=2),
    Case(
        "drafts, captured, eight ahead, few blocks",
        settings={**TOLD, "max_in_flight": 8, "draft_tokens": 8, **FEW_BLOCKS},
        rounds=2,
    ),
]
OTHER_MODEL = {"drafter": "draft_model", "adaptive_drafts": False}
"""With weights of the same kind, but other ones. Such a model costs as much as the stage's: adaptive drafts would verify none."""
DRAFTED += [
    Case("a model's drafts, eager", graphs=False, settings=OTHER_MODEL),
    Case("a model's drafts, captured, four ahead", settings={**OTHER_MODEL, "max_in_flight": 4}),
    Case("a model's drafts, captured, few blocks", settings={**OTHER_MODEL, **FEW_BLOCKS}),
]
GPU = pytest.mark.gpu
ON_DEVICES = [
    pytest.param("cpu", CASES[5], id=f"cpu, {CASES[5].name}"),
    pytest.param("cpu", CASES[-1], id=f"cpu, {CASES[-1].name}", marks=pytest.mark.slow),
    pytest.param("cpu", DRAFTED[1], id=f"cpu, {DRAFTED[1].name}", marks=pytest.mark.slow),
    pytest.param("cpu", DRAFTED[-3], id=f"cpu, {DRAFTED[-3].name}", marks=pytest.mark.slow),
    pytest.param("cpu", DRAFTED[-2], id=f"cpu, {DRAFTED[-2].name}", marks=pytest.mark.slow),
    pytest.param("cpu", DRAFTED[-1], id=f"cpu, {DRAFTED[-1].name}", marks=pytest.mark.slow),
    *(pytest.param("cuda", case, id=f"cuda, {case.name}", marks=GPU) for case in (*CASES, *DRAFTED)),
]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of the CPU in plain torch, one request after the other."""

    folder: Path
    tokens: list[list[int]]
    close: list[set[Choice]]


@pytest.fixture(scope="module", params=KINDS)
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp(request.param)
    write_text_model(folder, request.param)
    write_noisy_model(folder, folder / "other")
    device = WatchedCpu()
    engine = TextEngine(folder, {"text.prefix_cache": False}, device)
    answers = Answers(folder, [], [])
    for index, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLING, strict=True)):
        device.forget()
        recorder = engine.submit(str(index), prompt, max_tokens=TOKENS, **sampling)
        engine.run()
        assert device.choices >= len(recorder.tokens) > 3, "choices went past the watch"
        answers.tokens.append(recorder.tokens)
        answers.close.append(set(device.close))
    return answers


@pytest.mark.parametrize(("device", "case"), ON_DEVICES)
def test_tokens_equal_those_of_the_cpu(device: str, case: Case, alone: Answers) -> None:
    engine = TextEngine(alone.folder, case.overrides(alone.folder), open_device(device), graphs=case.graphs)
    comparison = Comparison()
    for number in range(case.rounds):
        recorders = []
        for index, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLING, strict=True)):
            recorders.append(engine.submit(f"{number}-{index}", prompt, max_tokens=TOKENS, **sampling))
            for _ in range(case.apart):
                engine.tick()
        engine.run()
        for recorder, tokens, close in zip(recorders, alone.tokens, alone.close, strict=True):
            comparison.tokens("text", recorder.tokens, tokens, close)
    comparison.assert_rare()
    counters = engine.engine.counters()["text"]
    assert (counters["preemptions"] > 0) == case.name.endswith("few blocks")
    assert case.settings is None or "drafter" not in case.settings or counters["accepted_drafts"] > 5
