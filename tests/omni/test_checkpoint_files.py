"""Files of a checkpoint that are not regular, that lead out of the folder, or that would take for ever: refused at once."""

import json
import os
import shutil
import socket
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni import CheckpointError, Omni
from omni.checkpoint import Checkpoint
from omni.checkpoint.json_file import MAX_BYTES, MAX_DEPTH, MAX_VALUES, read_object
from omni.checkpoint.pickle_file import MAX_BYTES as MAX_UNPACKED
from omni.checkpoint.pickle_file import read_table
from omni.checkpoint.shards import check_header, read_spans
from tests.omni.checkpoint_fuzz import chat_folder
from tests.support.tiny_omni import tiny_plugins

pytestmark = pytest.mark.thorough

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
SECONDS = 20.0
"""Of CPU time, for work that takes one or two seconds on a quiet machine."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(chat_folder(), tmp_path / "model"))


def load(model: Path) -> None:
    Omni(model, device="cpu", plugins=tiny_plugins()).close()


def index(model: Path, file: str, **others: str) -> None:
    names = load_file(model / SINGLE)
    (model / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, file) | others}))


@pytest.mark.parametrize(
    "file", ["config.json", SINGLE, "tokenizer.json", "generation_config.json", "added_tokens.json"]
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: bind(path), lambda path: os.symlink("/dev/zero", path)])
def test_a_pipe_socket_or_device_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, make: Callable[[Path | str], object]
) -> None:
    shutil.copytree(chat_folder(), tmp_path / "m")
    monkeypatch.chdir(tmp_path / "m")  # a socket's path is short
    (tmp_path / "m" / file).unlink(missing_ok=True)
    make(file)
    with pytest.raises(CheckpointError, match=rf"^{file}: cannot be read \(it is a (pipe|socket|device), not a file\)"):
        load(tmp_path / "m")


def bind(path: Path | str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_a_pipe_that_the_index_names(model: Path) -> None:
    (model / "deep").mkdir()
    os.mkfifo(model / "deep" / "pipe")
    index(model, "deep/pipe")
    with pytest.raises(CheckpointError, match=r"^pipe: cannot be read \(it is a pipe"):
        load(model)


@pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/passwd", "deep/../../outside.safetensors", ""])
def test_an_entry_of_the_index_that_leaves_the_folder(model: Path, file: str) -> None:
    shutil.move(model / SINGLE, model.parent / "outside.safetensors")
    (model / INDEX).write_text(json.dumps({"weight_map": {"a.weight": file}}))
    with pytest.raises(CheckpointError, match=rf"^{INDEX}: weight_map\.a\.weight: .* is not a file of the folder"):
        load(model)


def test_a_link_that_leaves_the_folder(model: Path) -> None:
    shutil.move(model / SINGLE, model.parent / "outside.safetensors")
    (model / "link.safetensors").symlink_to("../outside.safetensors")
    (model / INDEX).write_text(json.dumps({"weight_map": {"a.weight": "link.safetensors"}}))
    words = r"weight_map\.a\.weight: 'link\.safetensors' leads out of the folder, to "
    with pytest.raises(CheckpointError, match=words):
        load(model)


def test_a_file_that_fails_as_it_is_read() -> None:
    """The first page of this process's memory: an I/O error."""
    for read in (check_header, read_spans):
        with pytest.raises(CheckpointError, match=r"^mem: cannot be read \(Input/output error\)"):
            read(Path("/proc/self/mem"))


def hubs_cache(home: Path) -> Path:
    """A model's folder there, as the hub's library fills it. Returns that of its snapshot."""
    blobs, snapshot = home / "blobs", home / "snapshots" / "0a1b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    index_file = {"weight_map": dict.fromkeys(load_file(chat_folder() / SINGLE), "part.safetensors")}
    for number, file in enumerate(chat_folder().iterdir()):
        shutil.copy(file, blobs / str(number))
        name = "part.safetensors" if file.name == SINGLE else file.name
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    (blobs / "index").write_text(json.dumps(index_file))
    (snapshot / INDEX).symlink_to("../../blobs/index")
    return snapshot


def test_the_hubs_cache_is_links_out_of_the_folder(tmp_path: Path) -> None:
    """A snapshot's files are links to `blobs`, beside the folder of snapshots."""
    snapshot = hubs_cache(tmp_path / "models--me--mine")
    load(snapshot)
    load(Path(os.path.relpath(snapshot)))


@pytest.mark.parametrize("linked", ["blobs", "snapshots", "models--me--mine"])
def test_the_hubs_cache_may_be_links_itself(tmp_path: Path, linked: str) -> None:
    """To a larger disk: its blobs, its snapshots, or all of it."""
    home = tmp_path / "models--me--mine"
    snapshot = hubs_cache(home)
    moved = home if linked == home.name else home / linked
    (tmp_path / "disk").mkdir()
    shutil.move(moved, tmp_path / "disk" / "elsewhere")
    moved.symlink_to(tmp_path / "disk" / "elsewhere")
    if linked == "snapshots":
        # Such links are absolute: a relative one would lead nowhere.
        for link in snapshot.iterdir():
            number = link.readlink().name
            link.unlink()
            link.symlink_to(home / "blobs" / number)
    load(snapshot)


def test_weights_in_a_folder_of_the_folder(model: Path) -> None:
    (model / "deep").mkdir()
    shutil.move(model / SINGLE, model / "deep" / "part.safetensors")
    names = load_file(model / "deep" / "part.safetensors")
    (model / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "deep/part.safetensors")}))
    load(model)


@pytest.mark.parametrize("name", ["x" * 5000 + ".safetensors", "a\0b"])
def test_a_name_that_no_file_has(model: Path, name: str) -> None:
    index(model, name)
    with pytest.raises(CheckpointError) as caught:
        load(model)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 100_000])
def test_json_that_nests_without_end(model: Path, file: str, depth: int) -> None:
    for opening, closing in (('{"a":', "}"), ("[", "]")):
        (model / file).write_text('{"a":' + opening * depth + "0" + closing * depth + "}")
        with pytest.raises(CheckpointError, match=rf"^{file}: nests tables and lists"):
            load(model)


def test_json_of_a_million_keys(model: Path) -> None:
    begin = time.thread_time()
    keys = "{" + ",".join(f'"{n:x}":0' for n in range(1_000_001)) + "}"
    made = time.thread_time()
    (model / "config.json").write_text(keys.ljust(MAX_BYTES + 1))
    with pytest.raises(CheckpointError, match=r"^config\.json: has .* bytes, above 16,777,216"):
        load(model)
    (model / "config.json").write_text(keys)
    with pytest.raises(CheckpointError, match=rf"^config\.json: holds more than {MAX_VALUES:,} values"):
        load(model)
    shutil.copy(chat_folder() / "config.json", model)
    (model / INDEX).write_text('{"weight_map": ' + keys.replace(":0", ':"a"') + "}")
    with pytest.raises(CheckpointError, match=rf"^{INDEX}: weight_map: names 1,000,001 weights, not 1 to 1,000,000"):
        load(model)
    assert time.thread_time() - made < SECONDS + (made - begin)


def test_a_header_of_many_weights(model: Path) -> None:
    with (model / SINGLE).open("wb") as file:
        file.write(struct.pack("<Q", 2**26))
        file.truncate(2**27)
    words = r"^model\.safetensors: has a header of 67,108,864 bytes, above 33,554,432"
    with pytest.raises(CheckpointError, match=words):
        load(model)


def test_a_config_at_the_limits_is_read(tmp_path: Path) -> None:
    nested: dict[str, Any] = {}
    inner = nested
    for _ in range(MAX_DEPTH - 1):
        inner["a"] = {}
        inner = inner["a"]
    inner |= {str(n): n for n in range(1000)}
    (tmp_path / "config.json").write_text(json.dumps(nested).ljust(MAX_BYTES))
    assert Checkpoint(tmp_path).config == nested
    (tmp_path / "config.json").write_text(json.dumps(nested).ljust(MAX_BYTES + 1))
    with pytest.raises(CheckpointError, match=r"has 16,777,217 bytes"):
        read_object(tmp_path / "config.json")


def deflated(path: Path, sizes: dict[str, int]) -> None:
    """What `torch.save` wrote, its parts padded and packed."""
    torch.save({"a": {"b": torch.zeros(3)}}, path)
    with zipfile.ZipFile(path) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in parts.items():
            packed.writestr(name, content.ljust(sizes.get(Path(name).name, 0), b"\0"))


def test_a_packed_pickle_that_unpacks_to_much(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    deflated(path, {})
    assert torch.equal(read_table(path, "voices").table("a").floats("b", (3,)), torch.zeros(3))
    for sizes in ({"data.pkl": 8 << 20}, {"0": 200 << 20}):
        deflated(path, sizes)
        assert path.stat().st_size < 1e6
        begin = time.thread_time()
        with pytest.raises(CheckpointError, match=r"^t\.pt: unpacks to .* bytes, above"):
            read_table(path, "voices")
        assert time.thread_time() - begin < 1
    assert MAX_UNPACKED < 200 << 20


def test_weights_under_a_link_of_their_own_folder(model: Path) -> None:
    weights = load_file(model / SINGLE)
    save_file(weights, model / "real.safetensors")
    (model / "link.safetensors").symlink_to("real.safetensors")
    index(model, "link.safetensors")
    load(model)
