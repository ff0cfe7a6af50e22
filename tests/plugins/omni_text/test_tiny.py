"""The tiny checkpoint is answered as transformers answers it, and served."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni import Omni, SamplingParams
from omni.plugin.manager import load_plugins
from omni.timeline import read_trace
from omni_text.tiny import write_tiny
from tests.omni.cli.echo_program import environment, program
from tests.support.entry_points import own_entry_points
from tests.support.patience import PATIENCE_SECONDS

QUESTIONS = ["hello world", "what is a circle?", "The blue square, and the green one.", "who are you, and how many?"]
TOKENS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "text"
    write_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def omni(folder: Path) -> Iterator[Omni]:
    with Omni(folder, device="cpu", plugins=load_plugins(own_entry_points("ar", "local", "text"))) as omni:
        yield omni


def test_greedy_tokens_are_those_of_transformers(folder: Path, omni: Omni) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder)
    said: list[tuple[int, ...]] = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        prompt: Any = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
        made = reference.generate(**prompt, max_new_tokens=TOKENS, do_sample=False)[0]
        expected = tuple(made[prompt["input_ids"].shape[1] :].tolist())
        result = omni.generate(chat, sampling=SamplingParams(max_tokens=TOKENS, temperature=0.0), stream=False)
        assert result.tokens == expected
        assert result.text == tokenizer.decode(list(expected), skip_special_tokens=True)
        said.append(expected)
    assert len(set(said)) == len(said)
    assert all(len(set(tokens)) >= 5 for tokens in said)


def test_an_interrupted_run_has_its_timeline(tmp_path: Path) -> None:
    write_tiny(tmp_path / "endless", stop_gain=0.0, max_positions=32768)
    arguments = ["run", str(tmp_path / "endless"), "hello", "--timeline", "t.json", "--device", "cpu"]
    pipe = subprocess.PIPE
    command = [*program(), *arguments]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=tmp_path, env=environment()) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(20)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, b"interrupted\n")
    assert read_trace(tmp_path / "t.json").stages[0] == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["endless", "t.json"]
