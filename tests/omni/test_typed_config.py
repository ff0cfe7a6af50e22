"""config.json as a struct of a family's own."""

from typing import Annotated

import msgspec
import pytest

from omni.checkpoint.typed_config import typed_config
from omni.errors import CheckpointError


class Inner(msgspec.Struct, frozen=True):
    rates: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]


class Outer(msgspec.Struct, frozen=True):
    width: int
    inner: Inner
    name: str = "plain"


def test_what_is_not_named_is_let_by() -> None:
    raw = {"width": 3, "inner": {"rates": [2, 1], "torch_dtype": "float32"}, "model_type": "mine"}
    assert typed_config(Outer, raw) == Outer(3, Inner((2, 1)))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "^config.json: .*`width`"),
        ({"width": "3", "inner": {"rates": []}}, "^config.json: width: Expected `int`"),
        ({"width": True, "inner": {"rates": []}}, "^config.json: width: Expected `int`, got `bool`"),
        ({"width": 3, "inner": {}}, "^config.json: inner: .*`rates`"),
        ({"width": 3, "inner": {"rates": [2, 0]}}, r"^config.json: inner.rates\[1\]: Expected `int` >= 1; use the"),
    ],
)
def test_a_wrong_field_is_named(raw: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        typed_config(Outer, raw)
