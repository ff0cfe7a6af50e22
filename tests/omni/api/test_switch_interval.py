"""The interpreter's switch interval while models are open."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import ConfigError
from tests.support.echo_omni import opened


@pytest.fixture(autouse=True)
def own() -> Iterator[float]:
    """The program's own interval."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield 0.004
    sys.setswitchinterval(before)


def interval() -> float:
    return round(sys.getswitchinterval(), 6)


def test_the_switch_interval_is_lower_while_a_model_is_open(model: Path, own: float) -> None:
    with opened(model):
        assert interval() == 0.00002
        with opened(model, **{"frontend.switch_interval": 0.00001}):
            assert interval() == 0.00001
        assert interval() == 0.00002
    assert interval() == own


def test_a_lower_or_disabled_switch_interval_stays(model: Path, own: float) -> None:
    with opened(model, **{"frontend.switch_interval": None}):
        assert interval() == own
    sys.setswitchinterval(0.00001)
    with opened(model):
        assert interval() == 0.00001
    assert interval() == 0.00001


def test_a_wrong_one_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"switch_interval must be 0.00001 to 1 second"):
        opened(model, **{"frontend.switch_interval": 0})
