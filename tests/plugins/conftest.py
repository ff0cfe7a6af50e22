"""Fixtures of the families' tests."""

from collections.abc import Iterator

import pytest

from tests.support.devices import full_float32
from tests.support.tiny_drafters import cheap_passes

__all__ = ["cheap_passes"]


@pytest.fixture(autouse=True)
def no_tf32() -> Iterator[None]:
    with full_float32():
        yield
