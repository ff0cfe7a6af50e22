"""Distributions of third parties, installed from their wheels beside omni's, without the checkout: what `omni new` writes passes
its own tests at once, and the plugins of the tutorials do what the tutorials say.

CI runs them with both ends of the range of transformers, as all tests.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import soundfile

from tests.installed.environment import Environment, build_wheel
from tests.support.entry_points import REPOSITORY
from tests.support.tiers import chosen

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


@contextmanager
def installed_from(source: Path, installed: Environment, folder: Path) -> Iterator[Environment]:
    """The environment with omni, with a distribution too: both from their wheels."""
    (folder / "wheel").mkdir()
    with installed.having(build_wheel(source, folder / "wheel")):
        assert installed.unsatisfied(folder) == []
        yield installed


def run_own_tests(source: Path, installed: Environment, folder: Path, name: str) -> None:
    (tests := folder / "tests").mkdir()
    shutil.copy(source / f"test_{name}.py", tests)  # alone, so that the package beside it is not imported
    with installed_from(source, installed, folder) as environment:
        arguments = (f"omni_{name}", f"{environment.site}/", f"test_{name}.py")
        assert " passed" in environment.python(OWN_TESTS, tests, *arguments)


def made(installed: Environment, folder: Path, kind: str) -> Path:
    """What `omni new` writes."""
    assert "next:" in installed.omni(folder, "new", kind, EXAMPLES[kind], "--into", "made")
    return folder / "made" / f"omni-{EXAMPLES[kind]}"


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_new_distribution_is_that_of_the_examples(installed: Environment, tmp_path: Path, kind: str) -> None:
    assert contents(made(installed, tmp_path, kind)) == contents(REPOSITORY / "examples" / kind)


# The connector's tests also run in the checkout, from examples/connector.
@pytest.mark.parametrize("kind", chosen(["family", "stage", "processor"], EXAMPLES))
def test_a_new_distribution_passes_its_own_tests(installed: Environment, tmp_path: Path, kind: str) -> None:
    run_own_tests(made(installed, tmp_path, kind), installed, tmp_path, EXAMPLES[kind])


def copied(example: str, folder: Path) -> Path:
    """A copy, since a build leaves files."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    return shutil.copytree(REPOSITORY / "examples" / example, folder / example, ignore=ignored)


def test_the_tutorial_s_stages_pass_their_own_tests(installed: Environment, tmp_path: Path) -> None:
    run_own_tests(copied("extension", tmp_path), installed, tmp_path, "moods")


def test_the_tutorial_s_family_writes(installed: Environment, tmp_path: Path) -> None:
    with installed_from(copied("plugin", tmp_path), installed, tmp_path) as environment:
        environment.omni(tmp_path, "tiny", "--family", "bigram", "model")
        assert environment.omni(tmp_path, "run", "model", "The next", "--device", "cpu").strip()


def test_the_tutorial_s_family_speaks(installed: Environment, tmp_path: Path) -> None:
    with installed_from(copied("speech", tmp_path), installed, tmp_path) as environment:
        environment.omni(tmp_path, "tiny", "--family", "plain_tts", "model")
        environment.omni(tmp_path, "run", "model", "Say this.", "--seed", "2", "--out", "said.wav", "--device", "cpu")
    assert soundfile.info(tmp_path / "said.wav").frames > 0


def test_what_a_distribution_brings_is_gone_with_it(installed: Environment, tmp_path: Path) -> None:
    """So that the tests above, which share an environment, have omni and one distribution."""
    before = {path.name for path in installed.site.iterdir()}
    with installed_from(copied("plugin", tmp_path), installed, tmp_path):
        assert {path.name for path in installed.site.iterdir()} > before
    assert {path.name for path in installed.site.iterdir()} == before
