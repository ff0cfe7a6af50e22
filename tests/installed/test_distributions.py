"""Distributions of third parties, installed from their wheels beside omni's, without the checkout: what `omni new` writes passes
its own tests at once, and the plugins of the tutorials do what the tutorials say.

CI runs them with both ends of the range of transformers, as all tests.
"""

import shutil
from pathlib import Path

import pytest
import soundfile

from tests.installed.environment import Environment, build_wheel
from tests.support.entry_points import REPOSITORY

pytestmark = pytest.mark.thorough
EXAMPLES = {"family": "pocket", "stage": "scorer", "connector": "inline", "processor": "variety"}
"""Of each kind, the name of the distribution in examples/, which `omni new` writes."""
OWN_TESTS = """
import sys
import pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[3:]])
for package in ("omni", sys.argv[1]):
    assert sys.modules[package].__file__.startswith(sys.argv[2]), sys.modules[package].__file__
sys.exit(code)
"""


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def installed_from(source: Path, wheel: Path, folder: Path) -> Environment:
    """An environment with omni and a distribution, both from their wheels."""
    for name in ("wheel", "environment"):
        (folder / name).mkdir()
    environment = Environment(folder / "environment", wheel, build_wheel(source, folder / "wheel"))
    assert environment.unsatisfied(folder) == []
    return environment


def run_own_tests(source: Path, wheel: Path, folder: Path, name: str) -> None:
    environment = installed_from(source, wheel, folder)
    (tests := folder / "tests").mkdir()
    shutil.copy(source / f"test_{name}.py", tests)  # alone, so that the package beside it is not imported
    arguments = (f"omni_{name}", f"{environment.site}/", f"test_{name}.py")
    assert " passed" in environment.python(OWN_TESTS, tests, *arguments)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_new_distribution_passes_its_own_tests(
    installed: Environment, wheel: Path, tmp_path: Path, kind: str
) -> None:
    name = EXAMPLES[kind]
    assert "next:" in installed.omni(tmp_path, "new", kind, name, "--into", "made")
    made = tmp_path / "made" / f"omni-{name}"
    assert contents(made) == contents(REPOSITORY / "examples" / kind)
    run_own_tests(made, wheel, tmp_path, name)


def copied(example: str, folder: Path) -> Path:
    """A copy, since a build leaves files."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    return shutil.copytree(REPOSITORY / "examples" / example, folder / example, ignore=ignored)


def test_the_tutorial_s_stages_pass_their_own_tests(wheel: Path, tmp_path: Path) -> None:
    run_own_tests(copied("extension", tmp_path), wheel, tmp_path, "moods")


def test_the_tutorial_s_family_writes(wheel: Path, tmp_path: Path) -> None:
    environment = installed_from(copied("plugin", tmp_path), wheel, tmp_path)
    environment.omni(tmp_path, "tiny", "--family", "bigram", "model")
    assert environment.omni(tmp_path, "run", "model", "The next", "--device", "cpu").strip()


def test_the_tutorial_s_family_speaks(wheel: Path, tmp_path: Path) -> None:
    environment = installed_from(copied("speech", tmp_path), wheel, tmp_path)
    environment.omni(tmp_path, "tiny", "--family", "plain_tts", "model")
    environment.omni(tmp_path, "run", "model", "Say this.", "--seed", "2", "--out", "said.wav", "--device", "cpu")
    assert soundfile.info(tmp_path / "said.wav").frames > 0
