"""The record of a start is read by an equal one only."""

import importlib
import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from omni.kernels import StartRecord, Variant
from omni.kernels.variant import Pointer

VARIANTS = (Variant("module:kernel", (("x_ptr", Pointer(torch.float32, True)),), (("num_warps", 4),)),)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_equal_settings_have_one_record():
    StartRecord(("a", 1), ["omni"]).write(VARIANTS)
    assert StartRecord(("a", 1), ["omni"]).read() == VARIANTS
    assert StartRecord(("a", 2), ["omni"]).read() is None


def test_code_that_changes_has_another_record(monkeypatch: pytest.MonkeyPatch, cache: Path):
    monkeypatch.syspath_prepend(str(cache))
    source = cache / "stage_of_an_author.py"
    source.write_text("")
    importlib.import_module("stage_of_an_author")
    StartRecord(None, ["stage_of_an_author"]).write(VARIANTS)
    os.utime(source, ns=(1, 1))
    assert StartRecord(None, ["omni"]).read() is None
    assert StartRecord(None, ["stage_of_an_author"]).read() is None


def test_a_forgotten_record_is_none():
    record = StartRecord(None, [])
    record.write(VARIANTS)
    record.forget()
    assert record.read() is None
    record.forget()


def test_modules_that_are_not_loaded_yet_and_tables_count(monkeypatch: pytest.MonkeyPatch, cache: Path):
    monkeypatch.syspath_prepend(str(cache))
    package = cache / "package_of_an_author"
    package.mkdir()
    for name in ("__init__.py", "kernel.py", "table.json"):
        (package / name).write_text("")
    importlib.import_module(package.name)
    for changed in ("kernel.py", "table.json"):
        StartRecord(None, [package.name]).write(VARIANTS)
        assert StartRecord(None, [package.name]).read() == VARIANTS
        os.utime(package / changed, ns=(1, 1))
        assert StartRecord(None, [package.name]).read() is None


def test_a_damaged_record_is_none(cache: Path):
    record = StartRecord(None, [])
    record.write(VARIANTS)
    [path] = (cache / "omni-starts").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert record.read() is None
    record.write(VARIANTS)
    assert record.read() == VARIANTS


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path):
    (cache / "omni-starts").write_text("a file")
    record = StartRecord(None, [])
    record.write(VARIANTS)
    assert record.read() is None
