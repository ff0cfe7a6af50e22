"""Checkpoints that are spoiled in one place, and what becomes of them: refused at start by name, or served as a whole one is."""

import copy
import io
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from transformers import AutoConfig

from omni import CheckpointError, ConfigError, InputError, Omni, SamplingParams
from omni.utils.quiet import quiet
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import audio_of, picture, sound, text_of, tiny_plugins, user
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tiny_text import write_chat_model

GONE = object()
"""The place is not there at all."""
VALUES: dict[str, Any] = {
    "deleted": GONE,
    "null": None,
    "0": 0,
    "-1": -1,
    "-64": -64,
    "1": 1,
    "2**40": 2**40,
    "10**400": 10**400,
    "0.5": 0.5,
    "1e300": 1e300,
    "text": "x",
    "an empty text": "",
    "a list": [1],
    "an empty list": [],
    "a table": {"x": 1},
    "NaN": math.nan,
    "true": True,
}
TABLES = ("deleted", "null", "0", "text", "an empty list", "a list", "a table")
"""What takes the place of a whole list or table."""
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One place of one file, and the name of the value that is put there."""

    file: str
    place: Place
    value: str

    def __str__(self) -> str:
        return f"{self.file}: {'.'.join(map(str, self.place))} = {self.value}"


@cache
def chat_folder() -> Path:
    return Path(write_chat_model(Path(mkdtemp(prefix="omni-chat-"))))


def whole_omni() -> Path:
    return Path(tiny_checkpoint(3))


FAMILIES: dict[str, Callable[[], Path]] = {
    "qwen3_omni": whole_omni,
    "qwen2_5_omni": tiny_folder,
    "csm": tiny_csm,
    "text": chat_folder,
}
_VOICES = "spk_dict.pt"
_FILES = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer_config.json"),
    *("tokenizer.json", "chat_template.json", "model.safetensors.index.json", _VOICES),
)
_MANY = 3
"""Entries that are tried of a long list or of a table of many like ones: the first, and so many of the others."""


@cache
def content(folder: Path, file: str) -> Any:
    """The content of the file; config.json with transformers' defaults, so that places with a default are spoiled too."""
    if file == _VOICES:
        return torch.load(folder / file, weights_only=True)
    held = json.loads((folder / file).read_text())
    if file != "config.json":
        return held
    with quiet():
        filled = AutoConfig.from_pretrained(folder).to_dict()
    return _united(held, json.loads(json.dumps(filled, default=str)))


def _united(held: Any, filled: Any) -> Any:
    if not isinstance(held, dict):
        return held
    both = {
        name: _united(value, filled.get(name) if isinstance(filled, dict) else None) for name, value in held.items()
    }
    return both | {name: value for name, value in (filled or {}).items() if name not in both}


def faults(folder: Path) -> Iterator[Fault]:
    """Every place of every file, with each value: a list or table as a whole, and its items."""
    for file in _FILES:
        if (folder / file).exists():
            for place, inner in _places(content(folder, file), (), file):
                for value in TABLES if inner else VALUES:
                    yield Fault(file, place, value)


def _places(value: Any, place: Place, file: str) -> Iterator[tuple[Place, bool]]:
    if place:
        yield place, isinstance(value, dict | list)
    if isinstance(value, dict):
        names: Sequence[str | int] = list(value)
    elif isinstance(value, list):
        names = range(len(value))
    else:
        return
    # Entries of a vocabulary and weights of an index are alike; fields of a config are not.
    if len(names) > 2 * _MANY and (file != "config.json" or isinstance(value, list)) and place:
        names = random.Random(str(place)).sample(list(names), _MANY)
    for name in names:
        yield from _places(value[name], (*place, name), file)


def spoil(folder: Path, to: Path, fault: Fault) -> Path:
    """A copy of the checkpoint with the fault in it."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name != fault.file:
            os.link(file, to / file.name)
    held = copy.deepcopy(content(folder, fault.file))
    at = held
    for name in fault.place[:-1]:
        at = at[name]
    if VALUES[fault.value] is GONE:
        del at[fault.place[-1]]
    else:
        at[fault.place[-1]] = VALUES[fault.value]
    if fault.file == _VOICES:
        buffer = io.BytesIO()
        torch.save(held, buffer)
        (to / fault.file).write_bytes(buffer.getvalue())
    else:
        (to / fault.file).write_text(json.dumps(held))
    return to


def verdict(folder: Path, family: str) -> str:
    """`"refused: ..."` with the error, or `"served"`. Raises whatever else comes of it, and AssertionError for a model that fails
    requests."""
    try:
        omni = Omni(folder, device="cpu", plugins=tiny_plugins())
    except (CheckpointError, ConfigError) as error:
        return f"refused: {error}"
    with omni:
        for what, chat, modality in _requests(family, omni):
            sampling = {name: SamplingParams(max_tokens=count) for name, count in _LENGTHS[family][modality].items()}
            try:
                outputs = list(omni.generate(chat, sampling=sampling, modalities=_modalities(family, modality)))
            except InputError as error:
                if error.field != "prompt":
                    raise
                # A setting such as a hop of one sample is possible, and makes each sound too long.
                return f"refused: {error}"
            assert outputs, what
            assert outputs[-1].error is None, f"{what}: {outputs[-1].error}"
            text_of(outputs)
            assert audio_of(outputs).isfinite().all(), what
    return "served"


_LENGTHS: dict[str, dict[str, dict[str, int]]] = {
    "qwen3_omni": {"text": {"thinker": 3}, "audio": {"thinker": 3, "talker": 6}},
    "qwen2_5_omni": {"text": {"thinker": 3}, "audio": {"thinker": 3, "talker": 12}},
    "csm": {"audio": {"backbone": 4}},
    "text": {"text": {"text": 3}},
}


def _modalities(family: str, modality: str) -> tuple[str, ...]:
    return ("text", "audio") if modality == "audio" and family != "csm" else (modality,)


def _requests(family: str, omni: Omni) -> Iterator[tuple[str, Any, str]]:
    if family == "csm":
        yield "speech", user("hello"), "audio"
        heard = [{"type": "text", "text": "hm"}, sound(1, 0.2)]
        yield "speech after a sound", [{"role": "user", "content": heard}, *user("hello")], "audio"
        return
    yield "a text", user("what do you see"), "text"
    if family == "text":
        return
    yield "a picture and a sound", user(picture(9), sound(9, 0.3), "what is this"), "text"
    if "audio" in omni.modalities:
        yield "speech", user("hello"), "audio"
