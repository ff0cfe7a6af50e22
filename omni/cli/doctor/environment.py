"""Python and the packages that omni needs."""

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from omni.cli.doctor.check import Finding, last_line, ok, problem, warning
from omni.version import TESTED, __version__

_GROUP = "environment"
_PYTHON = (3, 11)
_IMPORTED = ("numpy", "torch", "transformers")
_NEEDS_CUDA = ("torchaudio", "torchvision")
_DISTRIBUTION = "omni-stages"
_REQUIREMENT = re.compile(r"""([\w.-]+)\s*(?:>=\s*([\d.]+))?[^;]*(?:;.*extra\s*==\s*["']([\w-]+)["'])?""")


@dataclass(frozen=True, slots=True)
class Requirement:
    """extra: the optional part that requires it; None if it is always required. least: empty for any version."""

    name: str
    least: str
    extra: str | None


def check_environment() -> Iterator[Finding]:
    """Versions, imports of the large packages, and combinations that do not work."""
    python = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _PYTHON:
        yield problem(_GROUP, "python", python, "use Python 3.11 or newer")
    else:
        yield ok(_GROUP, "python", python)
    yield ok(_GROUP, "omni", __version__)
    needed = requirements()
    if not needed:
        remedy = "pip install -e . in the folder that holds pyproject.toml"
        yield warning(_GROUP, "packages", "omni is not installed, so its requirements are unknown", remedy)
    for requirement in needed:
        yield _package(requirement)
    for module in _IMPORTED:
        yield _imports(module)
    yield from _bytecode()
    yield from _traps()


def _package(requirement: Requirement) -> Finding:
    name, least = requirement.name, requirement.least
    version = installed(name)
    extra = f" (extra {requirement.extra!r})" if requirement.extra is not None else ""
    install = f"pip install '{name}>={least}'" if least else f"pip install {name}"
    if version is not None and least and older(version, least):
        return problem(_GROUP, name, f"{version} is older than {least}", install)
    if version is None and not extra:
        return problem(_GROUP, name, "is not installed", install)
    if version is not None and name in TESTED:
        return _tested(name, version)
    return ok(_GROUP, name, f"{version or 'not installed'}{extra}")


def _tested(name: str, version: str) -> Finding:
    """Checks that a package is a version that the tests ran with."""
    oldest, newest = TESTED[name]
    detail = f"{version}; tested with {oldest} and {newest}"
    if older(newest, version):
        return warning(
            _GROUP, name, f"{detail}, not with a newer one", f"if a model fails, pip install '{name}<={newest}'"
        )
    return ok(_GROUP, name, detail)


def _imports(module: str) -> Finding:
    name = f"import {module}"
    try:
        import_module(module)
    # Broken installations raise anything.
    except Exception as error:
        remedy = f"install {module} again; the warnings here may show why it fails"
        return problem(_GROUP, name, last_line(error), remedy)
    return ok(_GROUP, name, "works")


def _bytecode() -> Iterator[Finding]:
    """After the imports, which write it where they may. Installers compile packages, unless the image is built without."""
    without = {name: spec for name in _IMPORTED if (spec := find_spec(name)) is not None and not _is_compiled(spec)}
    if without:
        detail = f"is missing for {', '.join(without)}: each start compiles their code, which takes seconds"
        folders = " ".join(str(Path(spec.origin or "").parent) for spec in without.values())
        yield warning(_GROUP, "bytecode", detail, f"python -m compileall -q {folders}")


def _is_compiled(spec: ModuleSpec) -> bool:
    return spec.cached is None or Path(spec.cached).exists()


def _traps() -> Iterator[Finding]:
    torch, triton, numpy = (installed(name) for name in ("torch", "triton", "numpy"))
    cpu_torch = torch is not None and _is_cpu_build()
    for name in _NEEDS_CUDA:
        if cpu_torch and installed(name) is not None:
            detail = f"is installed with torch {torch}, which has no CUDA: built for CUDA, it breaks the import of transformers"
            yield warning(_GROUP, f"{name} and torch", detail, f"pip uninstall {name}")
    if triton and numpy and older(triton, "3.9") and not older(numpy, "2.4"):
        detail = f"triton {triton} cannot interpret kernels (TRITON_INTERPRET=1) with numpy {numpy}"
        yield warning(_GROUP, "triton and numpy", detail, "pip install 'triton>=3.9', or 'numpy<2.4'")


def _is_cpu_build() -> bool:
    try:
        import torch
    except Exception:
        # Reported by the check of its import.
        return False
    return torch.version.cuda is None and torch.version.hip is None


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[Requirement]:
    """Requirements of the installed distribution; empty if it is not installed."""
    try:
        texts = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    matches = [match for text in texts if (match := _REQUIREMENT.match(text))]
    return [Requirement(match[1], match[2] or "", match[3]) for match in matches]


def older(version: str, than: str) -> bool:
    """Compares the leading numbers: 2.11.0+cpu is 2.11.0, and not older than 2.11."""
    one, other = _numbers(version), _numbers(than)
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)) < other + (0,) * (length - len(other))


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
