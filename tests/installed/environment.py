"""Fresh environments: wheels of omni and of plugins, what they depend on, and nothing of the checkout.

pip installs the wheels. Tests run offline, so the packages that they depend on are not fetched: they are links to those of the
environment of the tests, without omni. `Environment.unsatisfied` asks pip whether they are what the wheels require.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import PATIENCE_SECONDS

ROOTS = ("omni", "plugins", "connectors", "stages")
_BUILD = """
import os, sys, tomllib
from importlib import import_module
out, *sources = sys.argv[1:]
for source in sources:
    os.chdir(source)
    with open("pyproject.toml", "rb") as file:
        backend = tomllib.load(file).get("build-system", {}).get("build-backend")
    import_module(backend or "setuptools.build_meta").build_wheel(out)
"""
"""What pip does to build wheels, in one process instead of three for each."""
_PIP = ["-m", "pip", "--disable-pip-version-check"]
_OURS = ("omni", "__editable__", "_virtualenv", "__pycache__")
"""The beginnings of names in site-packages that are not linked: omni, and what finds it in the checkout."""


def build_wheels(sources: Iterable[Path], out: Path) -> list[Path]:
    """The wheels of distributions, in the folder `out`. Their backends build them, with what the environment of the tests has."""
    _run([sys.executable, "-c", _BUILD, str(out), *map(str, sources)], out)
    return sorted(out.iterdir())


def build_wheel(source: Path, out: Path) -> Path:
    """The wheel of a distribution, in the folder `out`."""
    (file,) = build_wheels([source], out)
    return file


class Environment:
    """A virtual environment in an empty folder."""

    def __init__(self, folder: Path, *wheels: Path) -> None:
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
        self.bin = folder / "bin"
        self.site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        for site in {sysconfig.get_path(name) for name in ("purelib", "platlib")}:
            for path in Path(site).iterdir():
                if not path.name.startswith(_OURS):
                    (self.site / path.name).symlink_to(path)
        self._folder = folder
        if wheels:
            self._install(*wheels)

    @contextmanager
    def having(self, *wheels: Path) -> Iterator[None]:
        """While entered, the distributions of wheels are installed too."""
        self._install(*wheels)
        try:
            yield
        finally:
            names = [wheel.name.split("-")[0] for wheel in wheels]
            _run([str(self.bin / "python"), *_PIP, "uninstall", "--quiet", "--yes", *names], self._folder)

    def _install(self, *wheels: Path) -> None:
        options = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
        _run([str(self.bin / "python"), *_PIP, "install", *options, *map(str, wheels)], self._folder)

    def python(self, program: str, folder: Path, *arguments: str) -> str:
        """What a program prints. folder: the current one. Raises AssertionError if it fails."""
        return _run([str(self.bin / "python"), "-I", "-c", program, *arguments], folder)

    def omni(self, folder: Path, *arguments: str) -> str:
        """What the installed program prints."""
        return _run([str(self.bin / "omni"), *arguments], folder)

    def unsatisfied(self, folder: Path) -> list[str]:
        """What `pip check` says of distributions whose name begins with omni: requirements that are missing or of another
        version."""
        said = _run([str(self.bin / "python"), *_PIP, "check"], folder, may_fail=True)
        assert "requirements" in said or "requires" in said or "has requirement" in said, said
        return [line for line in said.splitlines() if line.startswith("omni")]


def _run(command: list[str], folder: Path, *, may_fail: bool = False) -> str:
    """What a command prints. Variables that could lead to the checkout are left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))}
    environment = kept | {"PYTHONNOUSERSITE": "1"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert may_fail or ran.returncode == 0, ran.stdout + ran.stderr
    assert "run again" not in ran.stderr, "a batch failed"
    return ran.stdout
