"""An environment without the checkout: wheels in a folder of their own, beside what they depend on."""

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.support.entry_points import SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS

ROOTS = ("omni", "plugins", "connectors", "stages")
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
_FRESH = """
import sys
sys.path[:0] = {folders}
assert not set({roots}) & set(sys.path), sys.path
"""
_OMNI = """
from importlib.metadata import distribution
sys.argv[0] = "omni"
(script,) = distribution("omni-stages").entry_points.select(group="console_scripts", name="omni")
try:
    script.load()()
finally:
    ours = [module for name, module in sys.modules.items() if name.partition("_")[0].partition(".")[0] == "omni"]
    strangers = [module.__file__ for module in ours if not module.__file__.startswith({folder!r})]
    assert ours and not strangers, strangers
"""
"""Runs the console script as installed."""


def build_wheel(source: Path, out: Path) -> Path:
    """The wheel of a distribution, in the folder `out`."""
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    command = [*_PIP, "wheel", *offline, "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
    (file,) = out.iterdir()
    return file


def install(wheel: Path, target: Path) -> Path:
    """Installs a wheel into a folder of its own, and returns that."""
    offline = ["--no-deps", "--no-index", "--no-compile"]
    command = [*_PIP, "install", *offline, "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
    return target


def run(program: str, installed: Sequence[Path], folder: Path, *arguments: str) -> str:
    """What a Python program prints where only `installed` and the packages of the virtual environment can be imported, not the
    checkout. folder: the current one. Raises AssertionError if it fails."""
    site = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    # The virtual environment may lie in the checkout; its source roots may not be on the path.
    fresh = _FRESH.format(folders=[*map(str, installed), *site], roots=SOURCE_ROOTS)
    # -I: neither the current folder nor PYTHONPATH; -S: no `.pth` files, so also no editable installation.
    command = [sys.executable, "-I", "-S", "-c", fresh + program, *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "run again" not in ran.stderr, "a batch failed"
    return ran.stdout


def omni(installed: Path, folder: Path, *arguments: str) -> str:
    """What the installed program prints, run from another folder."""
    return run(_OMNI.format(folder=f"{installed}/"), [installed], folder, *arguments)
