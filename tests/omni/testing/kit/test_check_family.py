"""The conformance suite of families passes families that are right, and finds each planted fault."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from omni.errors import ConfigError
from omni.frontend.base import Chat, Prepared
from omni.testing import check_family
from omni_ar.layers.text_model import TextModel
from omni_text.frontend import TextFrontend
from tests.examples.plain_speech import TEXTS, PlainSpeech, plugins, write_tiny
from tests.omni.testing.kit import family_faults
from tests.omni.testing.kit.finding import finds
from tests.support.plugins import plugins_of
from tests.support.tiers import few
from tests.support.tiny_text import write_chat_model

pytestmark = pytest.mark.thorough

SAID = (
    "hello",
    "the quick brown fox jumps over it all, and over it again",
    "one two three",
    "what is that",
    "so it is",
)
MOST = 12

Reference = Callable[[Sequence[int], int], list[int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("text") / "model")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    """transformers', everything recomputed for each token."""
    model: Any = Qwen3ForCausalLM.from_pretrained(folder).eval()

    @torch.no_grad()
    def loop(prompt: Sequence[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    return loop


def check(folder: Path, reference: Reference, **arguments: Any) -> None:
    given = {"texts": SAID, "max_tokens": MOST, "seeds": (1,), "plugins": plugins_of("ar", "local", "text")}
    check_family(folder, reference=reference, **{**given, **arguments})


def test_the_text_family_is_that_of_transformers(folder: Path, reference: Reference):
    check(folder, reference)


@pytest.mark.slow
def test_speech_of_a_family_equals_that_of_a_plain_loop(tmp_path: Path):
    """The tokens of its talker are compared, which no user gets."""
    folder = write_tiny(tmp_path / "model")
    check(folder, PlainSpeech(folder).tokens, texts=TEXTS, plugins=plugins())


@pytest.mark.parametrize(
    ("broken", "found_by", "message"),
    few(
        4,
        [
            (family_faults.KeepsStateByRow, "aborted|one_by_one", "keep nothing by row|requests that join later"),
            (family_faults.CountsPositionsInTheChunk, "in_chunks", "not counted from 0"),
            (family_faults.AnswersForTheFirst, "together", "logits takes one row for each request"),
            (family_faults.FailsInLargeBatches, "together", "batches failed and were run again.*more than 3"),
            (family_faults.EmbedsFewRows, "preempted", "embed_next .* a batch of any size"),
            (family_faults.ScalesEmbeddings, "alone", "token 0 is .*compare hidden states layer by layer"),
            (family_faults.DropsOut, "alone", "layers that are left in training mode"),
            (family_faults.TakesDecodeRowsForPrompts, "one_by_one", "prompts and decode rows share a step"),
            (
                family_faults.KeepsTheTailInPython,
                "warm_cache|in_chunks",
                "lies in batch.cache|through batch.cache alone",
            ),
            (family_faults.AsksForAValue, "guarded", r"no .item\(\)|batches failed"),
            (family_faults.MasksByValue, "guarded", "no boolean masks|batches failed"),
        ],
    ),
)
def test_the_suite_finds_a_broken_model(
    folder: Path,
    reference: Reference,
    broken: type[TextModel],
    found_by: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("omni_text.model.TextModel", broken)
    with finds(found_by, message):
        check(folder, reference)


def test_a_front_end_without_a_prompt_is_found(folder: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TextFrontend, "prepare", _prepare_nothing)
    with pytest.raises(AssertionError, match=r"one prompt, not 0 .*put one omni_ar.inputs.Prompt"):
        check(folder, reference)


def _prepare_nothing(frontend: TextFrontend, chat: Chat) -> Prepared:
    return Prepared(inputs={})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": SAID[:2]}, "texts: are 2; give 3 or more"),
        ({"stage": "singer"}, "stage: 'singer' generates no tokens; name a stage that samples: text"),
        (
            {"reference": lambda prompt, count: [*prompt, *range(count)]},
            "begins with the prompt: return the new tokens",
        ),
        ({"reference": lambda prompt, count: [1] * (count - 1)}, "go on after an end-of-sequence id"),
        (
            {"reference": lambda prompt, count: [1] * count},
            "almost the same for every text, which a wrong model does too",
        ),
        ({"texts": ["a", "b", "c"], "max_tokens": 2}, "almost the same"),
    ],
)
def test_arguments_that_make_the_check_empty_are_refused(
    folder: Path, reference: Reference, arguments: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        check(folder, **{"reference": reference, **arguments})
