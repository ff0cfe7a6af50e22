"""A model of the echo family, open."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import Omni
from tests.support.echo_family import echo_model, eventually
from tests.support.echo_omni import assert_nothing_held, opened


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder. No test may change it."""
    return echo_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def omni(model: Path) -> Iterator[Omni]:
    """No memory is held after a test."""
    with opened(model) as omni:
        yield omni
        assert_nothing_held(omni)


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert eventually(lambda: set(threading.enumerate()) <= before)
