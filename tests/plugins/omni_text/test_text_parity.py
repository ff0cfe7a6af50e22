"""Tokens equal to transformers', greedy, alone and in batches that fill and empty while they run."""

import json
from pathlib import Path

import pytest

from tests.support.tiny_text import PENALTY, PROMPTS, TOKENS, VOCAB, TextEngine, TextReference


@pytest.fixture(scope="module", params=["tied", "untied", "moe"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextReference:
    return TextReference(tmp_path_factory.mktemp(request.param), request.param)


def test_the_reference_is_not_degenerate(reference: TextReference):
    answers = [reference.answer(index, 1.0) for index in range(8)]
    assert sum(len(set(tokens)) for tokens in answers) > 5 * len(answers)
    assert len({tuple(tokens) for tokens in answers}) == len(answers)
    assert all(tokens != reference.answer(index, PENALTY) for index, tokens in enumerate(answers) if index > 1)


@pytest.mark.parametrize("penalty", [1.0, PENALTY])
def test_a_single_request_gives_transformers_tokens(reference: TextReference, penalty: float):
    stage = TextEngine(reference.folder)
    for index in (0, 3, 7):
        recorder = stage.submit(str(index), PROMPTS[index], max_tokens=TOKENS, repetition_penalty=penalty)
        stage.run()
        assert recorder.tokens == reference.answer(index, penalty)
        assert recorder.reason == "length"


@pytest.mark.parametrize("options", [(8, 16, 2048), (3, 4, 40)])
def test_a_batch_that_is_joined_one_by_one_gives_transformers_tokens(
    reference: TextReference, options: tuple[int, int, int]
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


@pytest.mark.parametrize("where", ["generation_config.json", "config.json"])
def test_a_stop_id_of_the_checkpoint_ends_the_answer(where: str, reference: TextReference, tmp_path: Path):
    tokens = reference.answer(5, 1.0)
    for file in reference.folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    stop = tokens[6]
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text()) if where == "config.json" else {}
    (tmp_path / where).unlink(missing_ok=True)
    (tmp_path / where).write_text(json.dumps(config | {"eos_token_id": [stop, VOCAB - 1]}))
    stage = TextEngine(tmp_path)
    recorder = stage.submit("r", PROMPTS[5], max_tokens=TOKENS)
    stage.run()
    assert recorder.tokens == tokens[: tokens.index(stop) + 1]
    assert recorder.reason == "stop"
