"""The variants that a start has recorded, kept for the next start of the same stages, settings and code."""

import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch

from omni.kernels.variant import Variant

_CODE = (".py", ".json")
"""Endings of files that determine launches: modules, and tables of launch settings."""


class StartRecord:
    """A file beside the entries of Triton's cache.

    If something that is not part of its name changes, the record is stale: it names variants that the start does not launch, and
    those that it lacks are compiled at their first launches. `forget` it then.
    """

    def __init__(self, settings: object, packages: Collection[str]) -> None:
        """settings: all that determines the launches of the stages, compared as text. packages: top-level packages with their
        code."""
        import triton

        versions = torch.__version__, version("transformers"), triton.__version__
        digest = hashlib.sha256(repr((settings, versions, _code(packages))).encode()).hexdigest()
        self._path = Path(triton.knobs.cache.dir) / "omni-starts" / digest

    def read(self) -> Sequence[Variant] | None:
        """None without such a record."""
        with suppress(Exception):  # of another version, or cut off: the variants are recorded again
            return tuple(pickle.loads(self._path.read_bytes()))
        return None

    def write(self, variants: Sequence[Variant]) -> None:
        with suppress(OSError):  # a later start records again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, part = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(pickle.dumps(tuple(variants)))
            os.replace(part, self._path)  # another engine may write it too

    def forget(self) -> None:
        with suppress(OSError):
            self._path.unlink()


def _code(packages: Collection[str]) -> list[tuple[str, int, int]]:
    """The files of packages: modules are loaded when their code is first used, so the loaded modules do not show all of them."""
    found = []
    for package in packages:
        file = getattr(sys.modules.get(package), "__file__", None)
        if file is None:
            continue
        path = Path(file)
        for source in path.parent.rglob("*") if path.name == "__init__.py" else [path]:
            if source.suffix in _CODE:
                with suppress(OSError):
                    stat = source.stat()
                    found.append((str(source), stat.st_mtime_ns, stat.st_size))
    return sorted(found)
