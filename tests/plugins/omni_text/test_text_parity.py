"""Tokens equal to transformers', greedy, alone and in batches that fill and empty while they run."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from support.tiny_text import VOCAB, TextEngine, write_text_model

PROMPTS = [[(31 * index + 11 * place + place * place) % VOCAB for place in range(1 + 6 * index)] for index in range(8)]
TOKENS = 16
PENALTY = 1.3


class Reference:
    """A checkpoint folder, the transformers model in it, and what that model answers, alone."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.model: PreTrainedModel = write_text_model(folder, kind)
        self._answers: dict[tuple[int, float], list[int]] = {}

    def answer(self, index: int, penalty: float) -> list[int]:
        if (index, penalty) not in self._answers:
            self._answers[index, penalty] = self._generate(PROMPTS[index], penalty)
        return self._answers[index, penalty]

    def _generate(self, prompt: Sequence[int], penalty: float) -> list[int]:
        ids = torch.tensor([prompt])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=None,
            pad_token_id=VOCAB,
        )
        tokens: list[int] = out[0, len(prompt) :].tolist()
        return tokens


@pytest.fixture(scope="module", params=["tied", "untied", "moe"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp(request.param), request.param)


def test_the_reference_is_not_degenerate(reference: Reference):
    answers = [reference.answer(index, 1.0) for index in range(8)]
    assert sum(len(set(tokens)) for tokens in answers) > 5 * len(answers)
    assert len({tuple(tokens) for tokens in answers}) == len(answers)
    assert all(tokens != reference.answer(index, PENALTY) for index, tokens in enumerate(answers) if index > 1)


@pytest.mark.parametrize("penalty", [1.0, PENALTY])
def test_a_single_request_gives_transformers_tokens(reference: Reference, penalty: float):
    stage = TextEngine(reference.folder)
    for index in (0, 3, 7):
        recorder = stage.submit(str(index), PROMPTS[index], max_tokens=TOKENS, repetition_penalty=penalty)
        stage.run()
        assert recorder.tokens == reference.answer(index, penalty)
        assert recorder.reason == "length"


@pytest.mark.parametrize("options", [(8, 16, 2048), (3, 4, 40)])
def test_a_batch_that_is_joined_one_by_one_gives_transformers_tokens(
    reference: Reference, options: tuple[int, int, int]
):
    names = ("max_num_seqs", "block_size", "max_num_batched_tokens")
    stage = TextEngine(reference.folder, {f"text.{n}": value for n, value in zip(names, options, strict=True)})
    recorders = []
    for index, prompt in enumerate(PROMPTS):
        penalty = PENALTY if index % 2 else 1.0
        recorders.append(stage.submit(str(index), prompt, max_tokens=TOKENS, repetition_penalty=penalty))
        stage.tick()
    stage.run()
    for index, recorder in enumerate(recorders):
        assert recorder.tokens == reference.answer(index, PENALTY if index % 2 else 1.0)


def test_a_stop_id_of_the_checkpoint_ends_the_answer(reference: Reference, tmp_path: Path):
    tokens = reference.answer(5, 1.0)
    for file in reference.folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    stop = tokens[6]
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{stop}, {VOCAB - 1}]}}')
    stage = TextEngine(tmp_path)
    recorder = stage.submit("r", PROMPTS[5], max_tokens=TOKENS)
    stage.run()
    assert recorder.tokens == tokens[: tokens.index(stop) + 1]
    assert recorder.reason == "stop"
