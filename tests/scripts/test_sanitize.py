"""The shards of `scripts/sanitize.sh` have all tests that run kernels. Whether the tools report anything, a GPU shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCH_NOTHING = re.compile("test_(.*_compiles?|recorded_.*|tuning_tables).py")
"""Files of tests whose kernels are compiled or recorded only."""
SERVED = "served and not fp32 and not fp16 and not reference"


def shards() -> dict[str, str]:
    script = ROOT / "scripts" / "sanitize.sh"
    listed = subprocess.run(["bash", script, "--list"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(": ", 1) for line in listed.splitlines())


def files(selection: str) -> set[str]:
    """Of a shard, without those of `--ignore`."""
    named = re.findall(r"(?<!--ignore )\btests/\S+", selection)
    found = [[path] if path.is_file() else path.glob("test_*.py") for path in (ROOT / name for name in named)]
    return {str(path.relative_to(ROOT)) for paths in found for path in paths if not LAUNCH_NOTHING.fullmatch(path.name)}


def test_every_file_of_kernel_tests_is_in_a_shard() -> None:
    present = [
        path for path in ROOT.glob("tests/stages/*/kernels/test_*.py") if not LAUNCH_NOTHING.fullmatch(path.name)
    ]
    assert len(present) > 20
    listed = set[str]().union(*map(files, shards().values()))
    assert listed == {str(path.relative_to(ROOT)) for path in present}


@pytest.mark.thorough
def test_racecheck_runs_a_served_case_of_every_file() -> None:
    """Or, of files without such cases, all tests for a GPU."""
    checked = {name: selection for name, selection in shards().items() if not name.startswith("tiny")}
    served = set[str]().union(*(files(selection) for selection in checked.values() if SERVED in selection))
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "gpu", "-k", SERVED]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *sorted(served)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert collected.returncode == 0, collected.stdout
    assert set(re.findall("^(.*?)::", collected.stdout, re.MULTILINE)) == served
    every = set[str]().union(*map(files, shards().values()))
    others = {name for name in every - served if "gpu" in (ROOT / name).read_text()}
    assert others <= set[str]().union(*map(files, checked.values()))
