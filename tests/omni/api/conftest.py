"""A model of the echo family, open."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import Omni
from tests.support.echo_family import echo_model
from tests.support.echo_omni import assert_nothing_held, opened


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder. No test may change it."""
    return echo_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def omni(model: Path) -> Iterator[Omni]:
    """Nothing is held after a test."""
    with opened(model) as omni:
        yield omni
        assert_nothing_held(omni)
