"""Fixtures of the tests of Qwen3-Omni."""

from collections.abc import Iterator

import pytest

from omni import Omni
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, assert_freed, tiny_plugins


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins()) as omni:
        yield omni
        assert_freed(omni)
