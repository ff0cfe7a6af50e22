"""The example plugin's logits processors, through the public interface: one on the device, one on the host."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import NoRepeatNGramLogitsProcessor

from omni import InputError, Omni, SamplingParams
from omni.plugin.manager import Plugins
from tests.support.echo_family import eventually

PROMPT = "wai"


@pytest.fixture
def omni(plugins: Plugins, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Omni]:
    """An engine under the sync guard: a processor that waits for the device fails its requests."""
    monkeypatch.setenv("OMNI_SYNC_CHECK", "error")
    with Omni(folder, plugins=plugins, device="cpu") as omni:
        yield omni


def greedy(processors: Mapping[str, Mapping[str, object]], max_tokens: int = 40) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, processors=processors)


def expected(folder: Path, change: object, max_tokens: int = 40) -> str:
    """Greedy text of the bigram table, its logits changed by `change(ids, logits)`."""
    assert callable(change)
    table_VV = load_file(folder / "model.safetensors")["bigrams"]
    ids: list[int] = []
    newest = ord(PROMPT[-1])
    while len(ids) < max_tokens and newest != ord("\n"):
        newest = int(change(ids, table_VV[newest].clone()).argmax())
        ids.append(newest)
    return bytes(ids).decode(errors="replace")


def hurried(by: float, after: int):
    def change(ids: list[int], logits_V: torch.Tensor) -> torch.Tensor:
        for end in map(ord, ".\n"):
            logits_V[end] += by * max(len(ids) - after, 0)
        return logits_V

    return change


def unrepeated(size: int):
    processor = NoRepeatNGramLogitsProcessor(size)

    def change(ids: list[int], logits_V: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(processor(torch.tensor([ids], dtype=torch.int64), logits_V[None])[0])

    return change


HURRY = {"hurry": {"ids": [ord("."), ord("\n")], "by": 0.75, "after": 3}}


def generate(omni: Omni, asked: Sequence[SamplingParams]) -> list[str]:
    """The texts of requests that run at once, each with its own sampling."""
    with ThreadPoolExecutor(len(asked)) as threads:
        return list(threads.map(lambda one: omni.generate(PROMPT, stream=False, sampling=one).text, asked))


def test_the_processor_hurry_ends_a_text(omni: Omni, folder: Path):
    plain, hurry = generate(omni, [greedy({}), greedy(HURRY)])
    assert plain == expected(folder, lambda ids, logits_V: logits_V)
    assert hurry == expected(folder, hurried(0.75, 3))
    assert len(hurry) < len(plain)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_repeat_is_transformers_own(omni: Omni, folder: Path, size: int):
    result = omni.generate(PROMPT, stream=False, sampling=greedy({"no_repeat": {"size": size}}))
    assert result.text == expected(folder, unrepeated(size))
    assert result.text != expected(folder, lambda ids, logits_V: logits_V)


def test_two_processors_at_once_beside_requests_without_any(omni: Omni, folder: Path):
    ends = [ord("."), ord("\n")]
    both: dict[str, dict[str, object]] = {"hurry": {"ids": ends, "by": 1.5, "after": 8}, "no_repeat": {"size": 2}}
    asked = [greedy({}), greedy(both), greedy({"no_repeat": {"size": 2}}), greedy(HURRY)]

    def change(ids: list[int], logits_V: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(hurried(1.5, 8)(ids, unrepeated(2)(ids, logits_V)))

    alone = [generate(omni, [sampling])[0] for sampling in asked]
    assert generate(omni, asked) == alone
    assert alone[1] == expected(folder, change)
    assert len(set(alone)) == 4


@pytest.mark.parametrize(
    ("processors", "problem"),
    [
        ({"hury": {}}, r"processors.hury: is not a logits processor; known are hurry, no_repeat"),
        ({"hurry": {"ids": [], "by": 1}}, r"processors.hurry.ids: are 0; name 1 to 4"),
        ({"hurry": {"ids": [3, 256], "by": 1}}, r"processors.hurry.ids: 256 is not in the vocabulary"),
        ({"hurry": {"ids": [3]}}, r"processors.hurry: Object missing required field `by`"),
        ({"no_repeat": {"size": 0}}, r"processors.no_repeat: Expected `int` >= 1"),
        ({"no_repeat": {"length": 2}}, r"processors.no_repeat: Object contains unknown field `length`"),
    ],
)
def test_invalid_processors_are_refused_at_submission(
    omni: Omni, processors: dict[str, dict[str, object]], problem: str
):
    with pytest.raises(InputError, match=problem):
        omni.generate(PROMPT, stream=False, sampling=greedy(processors))
    assert eventually(lambda: omni.idle)
