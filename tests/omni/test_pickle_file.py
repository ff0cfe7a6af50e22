"""Tables of tensors: the contents of a valid file, and the errors for any other."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omni.checkpoint.pickle_file import Table, read_table
from omni.errors import CheckpointError

ANN = {"number": 7, "numbers": torch.arange(6.0).view(2, 3)}
BOB = {"number": 8, "numbers": torch.ones(2, 5, dtype=torch.bfloat16)}


def read(path: Path) -> dict[str, tuple[int, Tensor]]:
    """All of a file like that of `written`."""
    table = read_table(path, "voices")
    entries = {name: table.table(name) for name in table}
    return {name: (entry.index("number", 10), entry.floats("numbers", (2, None), 3)) for name, entry in entries.items()}


def written(path: Path, content: object, *, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_a_table_has_the_numbers_and_tensors_of_the_file(tmp_path: Path, zipped: bool) -> None:
    found = read(written(tmp_path / "t.pt", {"Ann": ANN, "Bob": BOB}, zipped=zipped))
    assert list(found) == ["Ann", "Bob"]
    for name, given in (("Ann", ANN), ("Bob", BOB)):
        number, numbers = found[name]
        assert number == given["number"]
        assert numbers.dtype == torch.float32
        assert torch.equal(numbers, torch.as_tensor(given["numbers"]).float())


class _Code:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, ("executed", "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "t.pt", {"Ann": _Code()}, zipped=zipped)
    with pytest.raises(CheckpointError, match=r"^t\.pt: is damaged, or holds more than .*; download it again$"):
        read_table(path, "voices")
    assert not Path("executed").exists()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^t\.pt: there is none in .*; download it: it holds the voices"):
        read_table(tmp_path / "t.pt", "voices")
    with pytest.raises(CheckpointError, match=r": cannot be read \(.*directory"):
        read_table(tmp_path, "voices")


@pytest.mark.parametrize("content", [{}, [1], 1, None, torch.zeros(2)])
def test_a_file_without_names(tmp_path: Path, content: object) -> None:
    with pytest.raises(CheckpointError, match="names no voices"):
        read_table(written(tmp_path / "t.pt", content), "voices")


@pytest.mark.parametrize("names", [("",), (1,), ("1", 1), (None,), (b"Ann",)])
def test_names_are_texts(tmp_path: Path, names: tuple[object, ...]) -> None:
    path = written(tmp_path / "t.pt", dict.fromkeys(names, ANN))
    with pytest.raises(CheckpointError, match="names voices by something that is not text, or empty"):
        read_table(path, "voices")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "names no entries"),
        ({"numbers": 1}, "lacks number"),
        ({"number": True}, r"t: Ann\.number: is a bool, not an int"),
        ({"number": 1.0}, "is a float, not an int"),
        ({"number": 10}, "10 is out of range, 0 to 9"),
        ({"number": -1}, "-1 is out of range"),
    ],
)
def test_wrong_numbers_of_a_table_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Table("t", {"Ann": entry}).table("Ann").index("number", 10)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([[1.0, 2.0, 3.0]], "is a list, not a tensor"),
        (torch.zeros(2, 3, dtype=torch.complex64), "is torch.complex64"),
        (torch.zeros(2, 3, dtype=torch.int64), "is torch.int64"),
        (torch.zeros(2, 3, dtype=torch.bool), "is torch.bool"),
        (torch.zeros(2, 3, dtype=torch.float8_e4m3fn), "is torch.float8_e4m3fn"),
        (torch.zeros(2, 3).to_sparse(), "torch.sparse_coo: no plain floating-point numbers"),
        (torch.zeros(6), r"Ann\.numbers: is \[6\], not \[2, at least 3\]"),
        (torch.zeros(2, 2), r"is \[2, 2\], not \[2, at least 3\]"),
        (torch.zeros(3, 3), r"is \[3, 3\]"),
        (torch.zeros(1).expand(2, 2**40), "has fewer numbers in the file"),
        (torch.zeros(2, 3, device="meta"), "has fewer numbers in the file"),
        (torch.full((2, 3), torch.nan), "not finite"),
        (torch.full((2, 3), 1e300, dtype=torch.float64), "not finite in float32"),
    ],
)
def test_wrong_tensors_of_a_table_are_refused(numbers: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Table("t", {"Ann": {"numbers": numbers}}).table("Ann").floats("numbers", (2, None), fewest=3)


def _spoiled(content: bytes) -> Iterator[bytes]:
    """A bit flipped in, and the end cut off at, hundreds of places; and other bytes."""
    draw, places = random.Random(0), range(len(content))
    for place in draw.sample(places, len(content) // 2):
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        yield bytes(flipped)
    yield from (content[:place] for place in draw.sample(places, 100))
    yield b"not a zip file"


@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_file_is_named_or_read(tmp_path: Path, zipped: bool) -> None:
    path, spoiled = written(tmp_path / "t.pt", {"Ann": ANN, "Bob": BOB}, zipped=zipped), tmp_path / "spoiled.pt"
    refused: list[str] = []
    for content in _spoiled(path.read_bytes()):
        spoiled.write_bytes(content)
        try:
            read(spoiled)
        except CheckpointError as error:
            refused.append(error.field)
    assert len(refused) > 100
    assert all(field.startswith("spoiled.pt") for field in refused)
