"""`omni doctor`: it reports each requirement of a model that is missing."""

import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omni.cli import app
from omni.cli.doctor.model import check_model
from omni.cli.options import Choices
from omni_encoder.options import EncoderOptions
from tests.omni.checkpoint_fuzz import chat_folder
from tests.support.entry_points import own_entry_points
from tests.support.tiers import chosen
from tests.support.tiny_omni import tiny_plugins
from tests.support.tiny_text import write_text_model

INDEX = "model.safetensors.index.json"


pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def points() -> list[EntryPoint]:
    return own_entry_points()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other installed packages are another test's subject."""
    monkeypatch.setattr("omni.cli.doctor.check_environment", lambda: iter(()))


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return shutil.copytree(tiny_model, tmp_path / "omni")


def call(*arguments: object) -> Result:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    return CliRunner().invoke(app, ["doctor", *map(str, arguments), *device])


def checks(*arguments: object) -> dict[str, Any]:
    """By name. Their statuses and the exit code agree."""
    result = call(*arguments, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == any(check["status"] == "problem" for check in found)
    assert all(bool(check["remedy"]) == (check["status"] != "ok") for check in found)
    return {check["name"]: check for check in found}


def problem(name: str, *arguments: object) -> str:
    """The detail and the remedy of the only check that found a problem."""
    found = checks(*arguments)
    assert [check["name"] for check in found.values() if check["status"] == "problem"] == [name]
    return f"{found[name]['detail']}; {found[name]['remedy']}"


def test_a_whole_model_is_well(tiny_model: Path) -> None:
    found = checks(tiny_model)
    assert {check["status"] for check in found.values()} == {"ok"}
    assert found["pipeline"]["detail"].endswith("audio_encoder, vision_encoder, thinker, talker, code2wav")
    assert "voices ethan" in found["processor"]["detail"]
    size = sum(file.stat().st_size for file in tiny_model.glob("*.safetensors"))
    assert (
        found["weights"]["detail"]
        == f"{len(list(tiny_model.glob('*.safetensors')))} files, {size:,} bytes, all complete"
    )


def test_the_text_is_grouped_and_counted(tiny_model: Path) -> None:
    result = call(tiny_model)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.startswith(" ")] == ["plugins", "devices", "model"]
    assert "  ok       device: cpu" in lines
    assert lines[-1].endswith("checks: all is well")


def test_a_problem_comes_with_its_remedy(folder: Path) -> None:
    (folder / "config.json").unlink()
    result = call(folder)
    assert result.exit_code == 1
    *_, what, remedy, summary = result.stdout.splitlines()
    assert what == f"  problem  config.json: config.json: is missing from {folder}"
    assert remedy == "           -> give a folder with a complete checkpoint"
    assert summary.endswith("checks: 1 problem")


def test_without_a_model_only_the_environment_is_checked() -> None:
    found = checks()
    assert {check["group"] for check in found.values()} == {"plugins", "devices"}


def pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def write(file: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(content)


def remove(*files: str) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        for file in files:
            (folder / file).unlink(missing_ok=True)

    return edit


def add_a_layer(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["text_config"]["num_hidden_layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))


PROBLEMS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no index": (write(INDEX, "{"), "weights", "is not valid JSON"),
    "an index of nothing": (write(INDEX, '{"weight_map": 3}'), "weights", "does not map weight names to file names"),
    "weights of another configuration": (add_a_layer, "shapes", "has no weights for"),
    "another model": (write("config.json", '{"model_type": "new"}'), "pipeline", "no plugin serves model type 'new'"),
    "half a config": (write("config.json", '{"model_type": "qwen3_omni_moe"}'), "pipeline", "config.json"),
    "no tokenizer": (remove("tokenizer.json", "vocab.json", "merges.txt"), "processor", "tokenizer"),
    "no processor": (remove("preprocessor_config.json"), "processor", "preprocessor_config.json: is missing"),
    "no template": (remove("chat_template.json"), "processor", "download chat_template.json"),
}


@pytest.mark.parametrize("what", PROBLEMS)
def test_a_broken_file_is_reported_as_the_only_problem(folder: Path, what: str) -> None:
    edit, check, words = PROBLEMS[what]
    edit(folder)
    assert words in problem(check, folder)


def shards(folder: Path) -> list[str]:
    return sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))


def test_every_shard_that_is_missing_or_broken_is_named(folder: Path) -> None:
    first, second, third = shards(folder)
    (folder / first).unlink()
    data = (folder / second).read_bytes()
    (folder / second).write_bytes(data[: len(data) // 2])
    found = checks(folder)
    held = sum(file == first for file in json.loads((folder / INDEX).read_text())["weight_map"].values())
    assert found[first]["detail"] == f"is missing, and {held} weights with it"
    assert found[first]["remedy"] == f"download it into {folder}"
    assert found[second]["detail"].startswith("is truncated or no safetensors file")
    assert third not in found
    assert "shapes" not in found
    assert found["processor"]["status"] == "ok"


def test_a_shard_without_weights_that_the_index_promises(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    file = shards(folder)[0]
    index["weight_map"]["thinker.more"] = file
    (folder / INDEX).write_text(json.dumps(index))
    assert "lacks thinker.more" in problem(file, folder)


def test_no_weights_at_all_unless_random_ones_are_wanted(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink()
    assert f"neither {INDEX} nor model.safetensors is in {folder}" in problem("weights", folder)
    assert checks(folder, "--load-format", "dummy")["weights"]["detail"] == "random (load_format is dummy)"


def test_a_single_file_is_looked_at_too(tmp_path: Path) -> None:
    write_text_model(tmp_path, "tied")
    found = checks(tmp_path)
    assert found["weights"]["detail"].startswith("1 file, ")
    assert found["shapes"]["status"] == "ok"
    # This model was saved without a tokenizer.
    assert "tokenizer_config.json: is missing" in found["processor"]["detail"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("some/model", "some/model is neither a folder nor downloaded; `hf download some/model`"),
        ("./some/model", "there is no folder ./some/model; give a checkpoint folder or a hub id"),
        ("a/b/c", "there is no folder a/b/c"),
    ],
)
def test_a_model_that_is_not_here(model: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in problem("folder", model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "nothing"], "--set: 'nothing' is not an override; write stage.option=value"),
        (["--set", "engine.device=tpu", "--device", "tpu"], "device: 'tpu' is not a device"),
        (["--config", "none.toml"], "none.toml: cannot be read"),
        (["--dtype", "float8"], "dtype: 'float8' is not supported"),
    ],
)
def test_wrong_settings_are_reported(tiny_model: Path, arguments: list[str], words: str) -> None:
    assert words in problem("settings", tiny_model, *arguments)


def test_settings_of_stages_are_checked_with_the_pipeline(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "omni.toml"
    file.write_text("[talker]\nspeed = 2\n")
    assert problem("pipeline", tiny_model, "--config", file).startswith(
        f"{file}: talker.speed: there is no option 'speed'"
    )


def test_a_device_that_is_not_here(tiny_model: Path) -> None:
    assert "'cuda:77' does not exist here" in problem("device", tiny_model, "--device", "cuda:77")


def test_memory_that_does_not_suffice(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the stages need" in problem("memory", tiny_model, "--set", "engine.memory_bytes=1000000")
    monkeypatch.setattr("omni.cli.doctor.model.host_memory", lambda: (10**9, 10**6))
    assert "0.0 GiB are free; lower max_model_len" in problem("memory", tiny_model)
    held = 2 * EncoderOptions().held_bytes
    least, most = held + 556 * 10**6, held + 637 * 10**6
    monkeypatch.setattr("omni.cli.doctor.model.host_memory", lambda: (10**10, (least + most) // 2))
    memory = checks(tiny_model)["memory"]
    assert memory["status"] == "warning"
    assert memory["remedy"] == "set engine.memory_bytes, and the stages divide it"


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (pipe, "model.safetensors: cannot be read (it is a pipe"),
    "deep JSON": (write("config.json", '{"a":' * 1000 + "0" + "}" * 1000), "config.json: nests tables"),
    "an entry that leaves": (write(INDEX, json.dumps({"weight_map": {"a": "../b"}})), "is not a file of the folder"),
    "a long name": (write(INDEX, json.dumps({"weight_map": {"a": "b" * 5000}})), "cannot be read (File name too long)"),
    "an endless template": (
        write("chat_template.jinja", "{{ messages }}{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2),
        "chat_template.jinja: cannot render a chat (takes more than 2 s)",
    ),
    "a broken tokenizer": (write("tokenizer.json", "hm"), "tokenizer.json: is not valid JSON"),
}


@pytest.mark.parametrize("what", chosen([what for what in FAULTS if what != "an endless template"], FAULTS))
def test_doctor_reports_the_problems_of_a_start(tmp_path: Path, what: str) -> None:
    folder = Path(shutil.copytree(chat_folder(), tmp_path / "model"))
    edit, words = FAULTS[what]
    edit(folder)
    checks = list(check_model(str(folder), Choices(device="cpu"), tiny_plugins()))
    problems = [check for check in checks if check.status == "problem"]
    assert any(words in check.detail for check in problems), problems


@pytest.mark.usefixtures("with_broken")
def test_a_broken_plugin_is_named_with_the_last_line_of_its_reason() -> None:
    words = "is broken: ModuleNotFoundError: No module named 'nothing_of_this_name'; `omni plugins --verbose` shows"
    assert words in problem("broken")


def test_two_plugins_that_claim_one_name(installed: list[EntryPoint]) -> None:
    (text,) = own_entry_points("text")
    installed.append(EntryPoint("zwilling", text.value, "omni"))
    result = json.loads(call("--json").stdout)
    conflicts = [check for check in result if check["name"] == "conflict"]
    assert conflicts[0]["detail"] == "plugins 'text' and 'zwilling' both claim the model family 'text'"
    assert {check["remedy"] for check in conflicts} == {"uninstall one of them"}


def test_no_plugin_at_all(installed: list[EntryPoint]) -> None:
    del installed[:]
    assert "none is installed" in problem("plugins")
