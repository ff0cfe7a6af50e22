"""Servers of the echo family and of a tiny text model, each shared by the tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.echo_family import echo_model
from tests.support.http_server import Served, echo_omni, served


@pytest.fixture(scope="session")
def echo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that gives texts back and sings them. No test may change it."""
    return echo_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def echo(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder)) as it:
        yield it


@pytest.fixture
def client(echo: Served) -> Iterator[OpenAI]:
    """Nothing is held after a test."""
    with echo.client() as client:
        yield client
    echo.assert_nothing_held()
