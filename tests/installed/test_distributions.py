"""Distributions of third parties, installed from their wheels beside omni's, without the checkout: what `omni new` writes passes
its own tests at once, and the plugins of the tutorials do what the tutorials say.

By default all are installed together, once; marked `slow`, each alone. CI runs them with both ends of the range of transformers, as
all tests.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from tests.installed.environment import Environment, build_wheel, build_wheels
from tests.support.entry_points import REPOSITORY

pytestmark = pytest.mark.thorough
EXAMPLES = {"family": "pocket", "stage": "scorer", "connector": "inline", "processor": "variety", "drafter": "usual"}
"""Of each kind, the name of the distribution in examples/, which `omni new` writes."""
TUTORIALS = {"extension": "moods", "plugin": "bigram", "speech": "plain_tts"}
"""By folder of examples/, the name of the distribution."""
TESTED = ("pocket", "scorer", "variety", "usual")
"""Those whose own tests run by default. The connector's take longer; those of moods run in the checkout too; two have none."""
COMMANDS = """
import json
import sys
from omni.cli import app
for words in map(json.loads, sys.argv[1:]):
    app(words, standalone_mode=False)
    print("-")
"""
OWN_TESTS = """
import sys
import pytest
packages, site, *files = sys.argv[1:]
code = pytest.main(["-q", "-rA", "-p", "no:cacheprovider", *files])
for package in ("omni", *packages.split(",")):
    assert sys.modules[package].__file__.startswith(site), sys.modules[package].__file__
sys.exit(code == pytest.ExitCode.INTERNAL_ERROR)
"""


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def commands(environment: Environment, folder: Path, *commands: tuple[str, ...]) -> list[str]:
    """What each command of omni's prints. They run one after the other in one process, which imports once."""
    *printed, _ = environment.python(COMMANDS, folder, *map(json.dumps, commands)).split("-\n")
    return printed


def copied(example: str, folder: Path) -> Path:
    """A copy, since a build leaves files."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    return shutil.copytree(REPOSITORY / "examples" / example, folder / example, ignore=ignored)


def own_tests(sources: dict[str, Path], environment: Environment, folder: Path) -> dict[str, list[str]]:
    """The verdicts of the own tests of installed distributions, by name: `"PASSED test_name.py::test"`."""
    (tests := folder / "tests").mkdir()
    files = {name: f"test_{name}.py" for name in sources}
    for name, source in sources.items():
        shutil.copy(source / files[name], tests)  # alone, so that the package beside it is not imported
    packages = ",".join(f"omni_{name}" for name in sources)
    printed = environment.python(OWN_TESTS, tests, packages, f"{environment.site}/", *files.values())
    verdicts = [line for line in printed.splitlines() if line.startswith(("PASSED ", "FAILED ", "ERROR ", "SKIPPED "))]
    assert verdicts, printed
    return {name: [verdict for verdict in verdicts if file in verdict] for name, file in files.items()}


def assert_passed(verdicts: list[str]) -> None:
    assert verdicts
    assert all(verdict.startswith("PASSED ") for verdict in verdicts), verdicts


@pytest.fixture(scope="module")
def new(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `omni new` writes of each kind, before any of them is installed: it refuses names that are taken."""
    folder = tmp_path_factory.mktemp("new")
    printed = commands(installed, folder, *(("new", kind, name, "--into", "made") for kind, name in EXAMPLES.items()))
    assert all("next:" in each for each in printed)
    return {kind: folder / "made" / f"omni-{name}" for kind, name in EXAMPLES.items()}


@pytest.fixture(scope="module")
def sources(new: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of each distribution's folder, by name, since a build leaves files."""
    folder = tmp_path_factory.mktemp("sources")
    written = {EXAMPLES[kind]: shutil.copytree(path, folder / path.name) for kind, path in new.items()}
    return written | {name: copied(example, folder) for example, name in TUTORIALS.items()}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_new_distribution_is_that_of_the_examples(new: dict[str, Path], kind: str) -> None:
    assert contents(new[kind]) == contents(REPOSITORY / "examples" / kind)


@pytest.fixture(scope="module")
def together(
    installed: Environment, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    """The environment with omni, with all of the distributions too."""
    folder = tmp_path_factory.mktemp("wheels")
    with installed.having(*build_wheels(sources.values(), folder)):
        assert installed.unsatisfied(folder) == []
        yield installed


@pytest.fixture(scope="module")
def verdicts(
    together: Environment, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """As of `own_tests`, which imports torch once for all."""
    return own_tests({name: sources[name] for name in TESTED}, together, tmp_path_factory.mktemp("own"))


@pytest.mark.parametrize("name", TESTED)
def test_a_distribution_passes_its_own_tests(verdicts: dict[str, list[str]], name: str) -> None:
    assert_passed(verdicts[name])


def test_the_tutorial_s_family_writes(together: Environment, tmp_path: Path) -> None:
    tiny = ("tiny", "--family", "bigram", "model")
    _, answer = commands(together, tmp_path, tiny, ("run", "model", "The next", "--device", "cpu"))
    assert answer.strip()


@pytest.mark.slow
def test_the_tutorial_s_family_speaks(together: Environment, tmp_path: Path) -> None:
    together.omni(tmp_path, "tiny", "--family", "plain_tts", "model")
    together.omni(tmp_path, "run", "model", "Say this.", "--seed", "2", "--out", "said.wav", "--device", "cpu")
    assert soundfile.info(tmp_path / "said.wav").frames > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXAMPLES.values(), *TUTORIALS.values()])
def test_a_distribution_needs_no_other(name: str, sources: dict[str, Path], wheel: Path, tmp_path: Path) -> None:
    for folder in ("environment", "wheel"):
        (tmp_path / folder).mkdir()
    alone = Environment(tmp_path / "environment", wheel, build_wheel(sources[name], tmp_path / "wheel"))
    assert alone.unsatisfied(tmp_path) == []
    if (sources[name] / f"test_{name}.py").exists():
        assert_passed(own_tests({name: sources[name]}, alone, tmp_path)[name])
    else:
        alone.omni(tmp_path, "tiny", "--family", name, "model")
        alone.omni(tmp_path, "run", "model", "The next", "--seed", "2", "--device", "cpu")
