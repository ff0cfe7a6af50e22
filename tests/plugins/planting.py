"""Faults that tests plant into a family's code."""

from collections.abc import Callable
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


def wrapped(owner: type, method: str, change: Callable[..., Any]) -> Plant:
    """`change(real, self, ...)` in place of a method."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = vars(owner)[method]
        patch.setattr(owner, method, lambda *arguments: change(real, *arguments))

    return plant
