"""The tutorial's connector: found by its own pyproject, run through the public interface, and as its tutorial shows it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omni import Omni, Result
from omni.plugin.manager import Plugins, load_plugins
from omni.testing import SimulatedDevice, check_connector
from omni_inline.connector import InlineConnector
from omni_qwen3_omni.tiny import write_tiny
from tests.support.entry_points import REPOSITORY, entry_points_of, own_entry_points
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import SHAPE, assert_like, lengths

pytestmark = pytest.mark.thorough
HOME = REPOSITORY / "examples" / "connector"
TUTORIAL = (REPOSITORY / "docs" / "tutorials" / "connector.md").read_text()
CHOSEN = {"edges.thinker-talker.connector": "inline"}
IN_TWO_PROCESSES = {**CHOSEN, "talker.place": "cpu/2"}


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    """omni's own plugins and the example's, as its pyproject names it."""
    loaded = load_plugins([*own_entry_points(), *entry_points_of(HOME / "pyproject.toml")])
    assert not [record.error for record in loaded.records if record.error]
    return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_tiny(path, seed=0, **SHAPE)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path, plugins: Plugins) -> Result:
    """Of the connector that the engine selects."""
    with opened(folder, plugins, {}) as omni:
        return answer(omni)


@contextmanager
def opened(folder: Path, plugins: Plugins, overrides: dict[str, str]) -> Iterator[Omni]:
    with Omni(folder, plugins=plugins, device="cpu", overrides=overrides) as omni:
        yield omni


def answer(omni: Omni) -> Result:
    return omni.generate("what do you see", stream=False, sampling=lengths(12, 16, temperature=0.7))


@pytest.mark.parametrize("overrides", few(1, [CHOSEN, IN_TWO_PROCESSES], SLOW), ids=["one process", "two processes"])
def test_the_results_are_those_of_the_default_connector(
    folder: Path, plugins: Plugins, expected: Result, overrides: dict[str, str]
):
    with opened(folder, plugins, overrides) as omni:
        result = answer(omni)
    assert result.text == expected.text
    assert result.audio is not None
    assert len(result.audio) > 0
    assert_like(result.audio, expected.audio)


def test_its_copies_race_with_nothing():
    device = SimulatedDevice(seed=1)
    check_connector(InlineConnector, device, largest_bytes=2**19)
    device.assert_no_races()


def test_the_tutorial_shows_the_connector_as_it_is():
    shown = re.findall(r"^`omni_inline/(\w+\.py)`: [^\n]*\n\n```python\n(.*?)```", TUTORIAL, re.DOTALL | re.MULTILINE)
    assert {name for name, _ in shown} == {"plugin.py", "connector.py"}
    for name, code in shown:
        assert code in (HOME / "omni_inline" / name).read_text(), f"{name} differs"
    (call,) = re.findall(r"```python\n(def test_keeps_the_contract.*?)```", TUTORIAL, re.DOTALL)
    assert call in (HOME / "test_inline.py").read_text()
