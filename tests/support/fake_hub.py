"""A repository on the hub, without one."""

import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

REPOSITORY = "owner/model"


def publish(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`REPOSITORY` has the files of `folder`. Those that are fetched are put into `cache`."""
    cache.mkdir()

    def fetch(repository: str, *, allow_patterns: Sequence[str], local_files_only: bool) -> str:
        assert (repository, local_files_only) == (REPOSITORY, False)
        for file in folder.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, cache)
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)


def fetched(cache: Path) -> set[str]:
    return {file.name for file in cache.iterdir()}
