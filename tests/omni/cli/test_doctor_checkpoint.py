"""`omni doctor` on spoiled checkpoints: a problem that names the place, and no traceback."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omni.cli.doctor.model import check_model
from omni.cli.options import Choices
from tests.omni.checkpoint_fuzz import chat_folder
from tests.support.tiers import chosen
from tests.support.tiny_omni import tiny_plugins

INDEX = "model.safetensors.index.json"


def pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def write(file: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(content)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (pipe, "model.safetensors: cannot be read (it is a pipe"),
    "deep JSON": (write("config.json", '{"a":' * 1000 + "0" + "}" * 1000), "config.json: nests tables"),
    "an entry that leaves": (write(INDEX, json.dumps({"weight_map": {"a": "../b"}})), "is no file of the folder"),
    "a long name": (write(INDEX, json.dumps({"weight_map": {"a": "b" * 5000}})), "cannot be read (File name too long)"),
    "an endless template": (
        write("chat_template.jinja", "{{ messages }}{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2),
        "chat_template.jinja: cannot render a chat (takes more than 2 s)",
    ),
    "a width": (
        lambda folder: (folder / "config.json").write_text(
            json.dumps(json.loads((folder / "config.json").read_text()) | {"hidden_size": -64})
        ),
        "config.json: hidden_size: is -64, below 1",
    ),
}


@pytest.mark.parametrize("what", chosen([what for what in FAULTS if what != "an endless template"], FAULTS))
def test_it_says_what_a_start_would_say(tmp_path: Path, what: str) -> None:
    folder = Path(shutil.copytree(chat_folder(), tmp_path / "model"))
    edit, words = FAULTS[what]
    edit(folder)
    checks = list(check_model(str(folder), Choices(device="cpu"), tiny_plugins()))
    problems = [check for check in checks if check.status == "problem"]
    assert any(words in check.detail for check in problems), problems
