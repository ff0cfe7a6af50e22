"""The variants that a start has recorded, kept for the next start of the same stages, settings and code."""

import hashlib
import importlib.metadata
import os
import pickle
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from omni.kernels.variant import Variant

_LIBRARIES = ("torch", "transformers", "triton")


class StartRecord:
    """A file beside the entries of Triton's cache. Where code that it does not know of has changed, the record is of other kernels
    than the start launches, and those are compiled at their first launches."""

    def __init__(self, settings: object, packages: Collection[str]) -> None:
        """settings: all that determines what the stages launch; equal where its text is. packages: top-level ones with their code,
        whose modules are imported."""
        import triton

        versions = [importlib.metadata.version(name) for name in _LIBRARIES]
        digest = hashlib.sha256(repr((settings, versions, _code(packages))).encode()).hexdigest()
        self._path = Path(triton.knobs.cache.dir) / "omni-starts" / digest

    def read(self) -> Sequence[Variant] | None:
        """None if there is no such record."""
        with suppress(Exception):  # of another version, or cut off: the variants are recorded again
            return tuple(pickle.loads(self._path.read_bytes()))
        return None

    def write(self, variants: Sequence[Variant]) -> None:
        with suppress(OSError):  # a later start records again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            part.write_bytes(pickle.dumps(tuple(variants)))
            part.replace(self._path)  # another engine may write it too


def _code(packages: Collection[str]) -> list[tuple[str, int, int]]:
    """The files of loaded modules."""
    found = []
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and name.partition(".")[0] in packages:
            with suppress(OSError):
                stat = os.stat(path)
                found.append((name, stat.st_mtime_ns, stat.st_size))
    return found
