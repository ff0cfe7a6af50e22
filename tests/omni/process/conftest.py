"""Engine processes of these tests are forked."""

from pathlib import Path

import pytest

from tests.support.echo_family import echo_model


@pytest.fixture(scope="module", autouse=True)
def forked(forked_processes: None) -> None:
    """Before the first test counts processes and descriptors."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the echo family. Tests of cut stages have another in its place."""
    return echo_model(tmp_path_factory.mktemp("model"))
