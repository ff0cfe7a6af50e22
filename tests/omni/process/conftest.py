"""Engine processes of these tests are forked."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def forked(forked_processes: None) -> None:
    """Before the first test counts processes and descriptors."""
