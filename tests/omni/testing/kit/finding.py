"""Checks of a suite's findings."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def finds(found_by: str, message: str) -> Iterator[None]:
    """The suite that runs inside fails in one of the checks `found_by`, `"alone|together"`, with a message that matches."""
    with pytest.raises(AssertionError, match=f"(?s){message}") as raised:
        yield
    notes = raised.value.__notes__
    assert any(f"in the check {name}" in notes for name in found_by.split("|")), notes
