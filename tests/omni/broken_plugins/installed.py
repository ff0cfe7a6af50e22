"""Copies of working plugins, changed in one place and installed as pip would: a package and its metadata on the path."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from shutil import copytree

from tests.omni.broken_plugins.fault import HERE
from tests.support.entry_points import REPOSITORY

_SOURCES = {
    "plain_talk": REPOSITORY / "tests/omni/broken_plugins/good/plain_talk",
    "plain_tts": REPOSITORY / "examples/speech/plain_tts",
}


@dataclass(frozen=True, slots=True)
class Installed:
    """points: its entry points. place: file and line of the mark, as errors name them; empty without a mark."""

    distribution: str
    points: tuple[EntryPoint, ...]
    place: str


@contextmanager
def installed(package: str, changes: Mapping[str, tuple[str | None, str]], site: Path) -> Iterator[Installed]:
    """A copy of `package`, installed in the folder `site`. changes: by file, the replacements."""
    copytree(_SOURCES[package], site / package, ignore=lambda _, names: {"__pycache__"} & set(names))
    place = ""
    for name, (old, new) in changes.items():
        file = site / package / name
        text = file.read_text()
        assert old is None or text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        changed = new if old is None else text.replace(old, new)
        file.write_text(changed)
        place = next((f"{file}:{i}" for i, line in enumerate(changed.splitlines(), 1) if HERE in line), place)
    distribution = f"{package.replace('_', '-')}-plugin"
    _write_metadata(site / f"{package}_plugin-1.0.dist-info", distribution, package)
    before = {name: module for name, module in sys.modules.items() if _is_of(package, name)}
    for name in before:
        del sys.modules[name]
    sys.path.insert(0, str(site))
    invalidate_caches()
    try:
        (found,) = distributions(path=[str(site)])
        yield Installed(distribution, tuple(found.entry_points), place)
    finally:
        sys.path.remove(str(site))
        for name in [name for name in sys.modules if _is_of(package, name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_of(package: str, module: str) -> bool:
    return module.partition(".")[0] == package


def _write_metadata(folder: Path, distribution: str, package: str) -> None:
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[omni]\n{package} = {package}.plugin\n")
    (folder / "top_level.txt").write_text(f"{package}\n")
