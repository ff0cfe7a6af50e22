"""Files and folders that are written as a whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from omni.utils.files import filling, is_special, replacing, write_problem
from tests.support.resources import no_file_over


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def fill(folder: Path, meanwhile: Callable[[], object] = lambda: None, **files: bytes) -> None:
    with filling(folder) as part:
        meanwhile()
        for name, data in files.items():
            (part / name).write_bytes(data)


def test_a_file_is_replaced_by_a_whole_one_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    path.chmod(0o600)
    with replacing(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert tree(tmp_path) == {"a": b"after"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    with no_file_over(1000), pytest.raises(OSError, match="File too large"), replacing(tmp_path / "a") as file:
        file.write(bytes(100_000))
    assert tree(tmp_path) == {"a": b"before"}


def test_a_folder_is_filled_whole(tmp_path: Path) -> None:
    with filling(tmp_path / "new" / "folder") as part:
        (part / "deeper").mkdir()
        (part / "deeper" / "a").write_bytes(b"1")
        (part / "b").write_bytes(b"2")
        assert tree(tmp_path / "new" / "folder").keys().isdisjoint({"b", "deeper/a"})
    assert tree(tmp_path) == {"new/folder/b": b"2", "new/folder/deeper/a": b"1"}
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["b", "deeper"]


@pytest.mark.parametrize("exists", [False, True])
def test_of_a_folder_that_fails_nothing_is_left(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "new" / "folder"
    if exists:
        folder.mkdir(parents=True)
    with no_file_over(1000), pytest.raises(OSError, match="File too large"):
        fill(folder, a=b"1", b=bytes(100_000))
    assert [path.name for path in tmp_path.rglob("*")] == (["new", "folder"] if exists else [])


def test_of_files_that_cannot_all_be_moved_none_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has no free space for another entry of the folder."""
    rename = Path.rename

    def fail_at_b(path: Path, target: Path) -> Path:
        if path.name == "b" and path.parent.name.endswith(".part"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_at_b)
    with pytest.raises(OSError, match="No space left"):
        fill(tmp_path / "folder", a=b"1", b=b"1", c=b"1")
    assert list(tmp_path.iterdir()) == []


def test_of_a_folder_below_a_file_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(OSError, match="Not a directory"), filling(tmp_path / "a" / "b" / "c"):
        pytest.fail("there is no such folder")
    assert tree(tmp_path) == {"a": b"before"}


def test_files_of_others_in_a_folder_stay(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with no_file_over(1000), pytest.raises(OSError, match="File too large"):
        fill(folder, lambda: (folder / "mine").write_bytes(b"mine"), a=bytes(100_000))
    assert tree(tmp_path) == {"folder/mine": b"mine"}


def test_devices_and_pipes_are_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path(os.devnull)):
        assert is_special(path)
        assert write_problem(path) == f"{path} cannot be written (it is not a regular file)"
        with pytest.raises(OSError, match="not a regular file"), replacing(path):
            pytest.fail("it is not a file")
    assert not is_special(tmp_path)
    assert not is_special(tmp_path / "nothing")


def test_why_not_gives_the_reason_and_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    assert write_problem(tmp_path / "a") is None
    assert write_problem(tmp_path / "b") is None
    assert write_problem(tmp_path) == f"{tmp_path} cannot be written (it is a folder)"
    assert write_problem(tmp_path / "a" / "b") == f"{tmp_path / 'a' / 'b'} cannot be written (Not a directory)"
    assert tree(tmp_path) == {"a": b"before"}
