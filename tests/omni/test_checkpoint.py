import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omni.checkpoint import Checkpoint, resolve
from omni.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (3, 4), "b.weight": (5,), "c.weight": (2, 2, 2)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> Path:
    (folder / "config.json").write_text('{"model_type": "m"}')
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    files = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(weights)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in weights if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    return folder


@pytest.mark.parametrize("shards", [1, 2])
def test_reads_the_written_entries(tmp_path: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    checkpoint = Checkpoint(write(tmp_path, weights, shards))
    assert checkpoint.config == {"model_type": "m"}
    assert checkpoint.generation_config == {}
    assert set(checkpoint.names()) == set(weights)
    for name, tensor in weights.items():
        assert checkpoint.has(name)
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert torch.equal(checkpoint.tensor(name), tensor)
    assert not checkpoint.has("d.weight")


@pytest.mark.parametrize("shards", [1, 2])
def test_spans_are_where_the_bytes_of_a_weight_lie(
    tmp_path: Path, weights: dict[str, torch.Tensor], shards: int
) -> None:
    spans = Checkpoint(write(tmp_path, weights, shards)).spans(weights)
    assert {name for name, _ in spans} == set(weights)
    assert [(span.path, span.start) for _, span in spans] == sorted((span.path, span.start) for _, span in spans)
    for name, span in spans:
        stored = torch.frombuffer(bytearray(span.path.read_bytes()[span.start : span.stop]), dtype=span.dtype)
        assert torch.equal(stored.view(span.shape), weights[name])


def test_keeps_the_published_dtype(tmp_path: Path) -> None:
    tensor = torch.arange(4, dtype=torch.bfloat16)
    assert torch.equal(Checkpoint(write(tmp_path, {"a": tensor}, 1)).tensor("a"), tensor)


def test_config_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 1}')
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.generation_config == {"eos_token_id": 1}
    with pytest.raises(CheckpointError, match=r"no weights.*load_format"):
        checkpoint.names()


def test_a_missing_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: is missing") as caught:
        Checkpoint(tmp_path)
    assert caught.value.field == "config.json"


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not valid JSON"), ("[1]", "list, not an object"), ("", "not valid JSON")]
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_broken_config_is_refused(tmp_path: Path, text: str, message: str, file: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint(tmp_path)
    assert caught.value.field == file


def index(weight_map: object) -> Callable[[Path], object]:
    return lambda folder: (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("spoil", "field", "message"),
    [
        (
            lambda folder: (folder / "model-1.safetensors").unlink(),
            "model-1.safetensors",
            "1 weights need it: b.weight",
        ),
        (
            index({"a.weight": "model-0.safetensors", "ghost": "model-0.safetensors"}),
            "model-0.safetensors",
            "lacks ghost",
        ),
        (index(3), INDEX, "weight_map"),
        (index({"a": 1}), INDEX, "weight_map"),
        (lambda folder: (folder / INDEX).write_text("{}"), INDEX, "weight_map"),
    ],
)
def test_a_mistake_in_an_index_or_its_shards_is_named(
    tmp_path: Path, weights: dict[str, torch.Tensor], spoil: Callable[[Path], object], field: str, message: str
) -> None:
    spoil(write(tmp_path, weights, 2))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path).shape("a.weight")
    assert caught.value.field.startswith(field)
    assert message in str(caught.value)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, weights: dict[str, torch.Tensor], shards: int, keep: int) -> None:
    checkpoint = Checkpoint(write(tmp_path, weights, shards))
    file = tmp_path / ("model.safetensors" if shards == 1 else "model-0.safetensors")
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="truncated") as caught:
        checkpoint.tensor("a.weight")
    assert caught.value.field == file.name


def test_missing_weight_is_named(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    checkpoint = Checkpoint(write(tmp_path, weights, 1))
    with pytest.raises(CheckpointError, match="not among the 3 weights") as caught:
        checkpoint.tensor("d.weight")
    assert caught.value.field == "d.weight"


def test_a_local_folder(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve("~/model") == tmp_path / "model"


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.touch()
    with pytest.raises(CheckpointError, match="is a file; give the folder"):
        resolve(file)


@pytest.mark.parametrize("model", ["./nowhere", "/no/where", "a/b/c", "nowhere/", "", Path("nowhere/here")])
def test_no_such_folder(model: str | Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve(model)
    assert caught.value.field == "model"
    assert "there is no folder" in caught.value.problem


@pytest.mark.parametrize("model", ["nobody/no-such-model", "not a hub id"])
def test_neither_folder_nor_known_to_the_hub(model: str) -> None:
    # Tests run offline: the hub answers from an empty cache.
    with pytest.raises(CheckpointError, match="not a local folder, and the hub gave no such checkpoint"):
        resolve(model)
