"""The tiny checkpoint is what transformers would have published: read with its own classes, answered alike, and served."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM
from typer.testing import CliRunner

from omni import Omni, SamplingParams
from omni.cli import app
from omni.errors import ConfigError
from omni.plugin.manager import load_plugins
from omni.timeline import read_trace
from omni.utils.quiet import quiet
from omni_text.tiny import write_tiny
from tests.omni.cli.echo_program import environment, program
from tests.support.entry_points import own_entry_points
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import no_file_over

QUESTIONS = ["hello world", "what is a circle?", "The blue square, and the green one.", "who are you, and how many?"]
TOKENS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "text"
    write_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    with quiet():
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model, info = loaded
    assert {key: list(value) for key, value in info.items() if value} == {}
    assert isinstance(model, Qwen3ForCausalLM)
    return model


@pytest.fixture(scope="module")
def omni(folder: Path) -> Iterator[Omni]:
    with Omni(folder, device="cpu", plugins=load_plugins(own_entry_points("ar", "local", "text"))) as omni:
        yield omni


def test_names_are_the_published_ones(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["Qwen3ForCausalLM"], "qwen3")
    names = {name.replace(".layers.2.", ".layers.N.") for name in load_file(folder / "model.safetensors")}
    # From the index of the released Qwen3-8B.
    assert names > {
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.N.input_layernorm.weight",
        "model.layers.N.mlp.down_proj.weight",
        "model.layers.N.mlp.gate_proj.weight",
        "model.layers.N.mlp.up_proj.weight",
        "model.layers.N.post_attention_layernorm.weight",
        "model.layers.N.self_attn.k_norm.weight",
        "model.layers.N.self_attn.k_proj.weight",
        "model.layers.N.self_attn.o_proj.weight",
        "model.layers.N.self_attn.q_norm.weight",
        "model.layers.N.self_attn.q_proj.weight",
        "model.layers.N.self_attn.v_proj.weight",
        "model.norm.weight",
    }


def test_the_same_arguments_write_the_same_checkpoint(folder: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    write_tiny(tmp_path / "same")
    write_tiny(tmp_path / "other", seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {file.name: file.read_bytes() for file in (tmp_path / "same").iterdir()} == files
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != files["model.safetensors"]
    with pytest.raises(ConfigError, match=r"tiny: .*the fields are layers, heads"):
        write_tiny(tmp_path, colour=3)


def test_greedy_tokens_are_those_of_transformers(folder: Path, reference: Any, omni: Omni) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
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


def test_by_the_command_line_it_is_written_whole_or_not_at_all(tmp_path: Path, folder: Path) -> None:
    target = tmp_path / "tiny"
    with no_file_over(10_000):
        ran = CliRunner().invoke(app, ["tiny", str(target), "--family", "text"])
    assert (ran.exit_code, ran.stdout) == (1, "")
    remedy = "name a folder that can be written, on a disk with room"
    assert ran.stderr == f"error: {target}: cannot be written (File too large); {remedy}\n"
    assert list(tmp_path.iterdir()) == []
    ran = CliRunner().invoke(app, ["tiny", str(target), "--family", "text"])
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.startswith(f"wrote a tiny text checkpoint to {target} (")
    assert {file.name: file.read_bytes() for file in target.iterdir()} == {
        file.name: file.read_bytes() for file in folder.iterdir()
    }


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
            _, told = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, told) == (130, b"interrupted\n")
    assert read_trace(tmp_path / "t.json").stages[0] == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["endless", "t.json"]
