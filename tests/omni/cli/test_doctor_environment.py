"""`omni doctor`: the environment and the devices."""

import os
import py_compile
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement as Reference
from packaging.version import Version

from omni.cli.doctor import devices, environment
from omni.cli.doctor.check import Finding
from omni.version import TESTED, __version__
from tests.support.entry_points import REPOSITORY, SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS

NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))


@given(NUMBERS, NUMBERS, st.sampled_from(["", "+cpu", ".post1"]))
def test_versions_are_ordered_as_packaging_orders_them(one: str, other: str, local: str) -> None:
    assert environment.older(one + local, other) == (Version(one) < Version(other))


def test_requirements_are_read_as_packaging_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["msgspec>=0.19", "tokenizers", "torch >= 2.11"]
    texts += ['ruff>=0.9; extra == "dev"', "torchaudio>=2; extra == 'gpu'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: texts)
    for text, found in zip(texts, environment.requirements(), strict=True):
        read = Reference(text)
        assert found.name == read.name
        assert found.least == "".join(part.version for part in read.specifier)
        assert found.extra is None if read.marker is None else read.marker.evaluate({"extra": found.extra or ""})


def by_name(found: Iterable[Finding]) -> dict[str, Finding]:
    return {check.name: check for check in found}


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What seems to be installed. A test may change it."""
    there = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "msgspec": "0.19"}
    monkeypatch.setattr(environment, "installed", there.get)
    needed = [environment.Requirement("torch", "2.11", None), environment.Requirement("msgspec", "0.19", None)]
    monkeypatch.setattr(
        environment, "requirements", lambda: [*needed, environment.Requirement("torchaudio", "2.11", "gpu")]
    )
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(environment, "_is_compiled", lambda spec: True)
    return there


def test_installed_and_new_enough_packages_are_ok(packages: dict[str, str]) -> None:
    found = by_name(environment.check_environment())
    assert {check.status for check in found.values()} == {"ok"}
    assert found["omni"].detail == __version__
    assert found["python"].detail.startswith(sys.version.split()[0])
    assert found["torchaudio"].detail == "not installed (extra 'gpu')"


def test_missing_or_too_old_packages_are_problems(packages: dict[str, str]) -> None:
    packages["torch"] = "2.9.1"
    del packages["msgspec"]
    found = by_name(environment.check_environment())
    assert (found["torch"].status, found["torch"].detail) == ("problem", "2.9.1 is older than 2.11")
    assert (found["msgspec"].status, found["msgspec"].remedy) == ("problem", "pip install 'msgspec>=0.19'")


def test_python_too_old(packages: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "sys", SimpleNamespace(version_info=(3, 10), executable="/usr/bin/python"))
    found = by_name(environment.check_environment())
    assert (found["python"].status, found["python"].remedy) == ("problem", "use Python 3.11 or newer")


@pytest.mark.parametrize("name", ["torchaudio", "torchvision"])
def test_packages_for_cuda_beside_a_torch_without(
    name: str, packages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages[name] = "2.13.0"
    check = by_name(environment.check_environment())[f"{name} and torch"]
    assert (check.status, check.remedy) == ("warning", f"pip uninstall {name}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert f"{name} and torch" not in by_name(environment.check_environment())


@pytest.mark.parametrize(
    ("triton", "numpy", "trapped"),
    [("3.6.0", "2.4.0", True), ("3.6.0", "2.3.9", False), ("3.9.0", "2.5.2", False)],
)
def test_triton_beside_a_newer_numpy(triton: str, numpy: str, trapped: bool, packages: dict[str, str]) -> None:
    packages.update(triton=triton, numpy=numpy)
    assert ("triton and numpy" in by_name(environment.check_environment())) == trapped


def test_packages_without_bytecode(packages: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "bytecode" not in by_name(environment.check_environment())
    monkeypatch.undo()
    monkeypatch.setattr(environment, "_IMPORTED", ("compiled", "uncompiled"))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("compiled", "uncompiled"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    py_compile.compile(str(tmp_path / "compiled" / "__init__.py"))
    found = by_name(environment._bytecode())["bytecode"]
    assert (found.status, found.detail.partition(":")[0]) == ("warning", "is missing for uncompiled")
    assert found.remedy == f"python -m compileall -q {tmp_path / 'uncompiled'}"


def test_not_installed_but_run_from_its_folder(packages: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "requirements", list)
    check = by_name(environment.check_environment())["packages"]
    assert check.status == "warning"
    assert "not installed" in check.detail


def test_a_package_that_fails_to_import_is_named_and_the_rest_is_checked(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('raise OSError("libcudart.so.13: cannot open\\nshared object file")\n')
    roots = [str(tmp_path), *SOURCE_ROOTS]
    program = f"import sys; sys.path[:0] = {roots}; from omni.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", program, "doctor"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=environment
    )
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "  problem  import torch: OSError: shared object file" in ran.stdout
    assert "  ok       import numpy: works" in ran.stdout
    assert "devices and model: not checked: import torch" in ran.stdout
    assert "\nplugins\n" in ran.stdout


def test_the_cpu_is_described_as_the_system_does() -> None:
    found = by_name(devices.check_devices())
    total, free = devices.host_memory()
    assert 0 < free <= total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["cpu"].detail.startswith(f"{len(os.sched_getaffinity(0))} cores, ")


def test_a_control_group_with_less_memory_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    assert devices.host_memory() == (1_000_000, 700_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.host_memory()[0] > 1_000_000


def test_a_system_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_MEMORY", tmp_path / "none")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert devices.host_memory() == (total, total)


def test_cuda_devices_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def mem_get_info(index: int) -> tuple[int, int]:
        if index:
            raise RuntimeError("CUDA error: out of memory\nnothing is left")
        return 2**33, 2**34

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A card")
    found = by_name(devices.check_devices())
    assert (found["cuda:0"].status, found["cuda:0"].detail) == ("ok", "A card, 8.0 GiB of 16.0 GiB free")
    assert (found["cuda:1"].status, found["cuda:1"].detail) == ("problem", "RuntimeError: nothing is left")
    assert "cuda" not in found


@pytest.mark.parametrize(("built", "status"), [(None, "ok"), ("13.0", "warning")])
def test_no_cuda_device(built: str | None, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", built)
    assert by_name(devices.check_devices())["cuda"].status == status


def test_the_tested_versions_are_those_of_the_constraints() -> None:
    oldest, newest = (
        dict(line.split("==") for line in (REPOSITORY / file).read_text().splitlines() if not line.startswith("#"))
        for file in ("constraints.txt", "constraints.newest.txt")
    )
    assert {name: (oldest[name], newest[name]) for name in newest} == TESTED
    dependencies = map(Reference, tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"])
    least = {each.name: "".join(part.version for part in each.specifier) for each in dependencies}
    for name, (first, _) in TESTED.items():
        assert Version(first) == Version(least[name]), "the oldest that pyproject.toml allows"


@pytest.mark.parametrize(
    ("version", "status", "detail"),
    [
        ("5.17.0", "ok", "5.17.0; tested with 5.17.0 and 5.24.0"),
        ("5.20.1", "ok", "5.20.1; tested with 5.17.0 and 5.24.0"),
        ("5.25.0", "warning", "5.25.0; tested with 5.17.0 and 5.24.0, not with a newer one"),
        ("5.16", "problem", "5.16 is older than 5.17"),
    ],
)
def test_tested_versions_are_reported(monkeypatch: pytest.MonkeyPatch, version: str, status: str, detail: str) -> None:
    monkeypatch.setattr(environment, "TESTED", {"transformers": ("5.17.0", "5.24.0")})
    monkeypatch.setattr(environment, "installed", {"transformers": version}.get)
    needed = environment.Requirement("transformers", "5.17", None)
    monkeypatch.setattr(environment, "requirements", lambda: [needed])
    check = by_name(environment.check_environment())["transformers"]
    assert (check.status, check.detail) == (status, detail)
