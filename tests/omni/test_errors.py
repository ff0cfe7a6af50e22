"""What errors quote, and what becomes of exceptions of plugins."""

import sys

import numpy as np
import pytest
import torch

from omni.errors import QUOTED, exception_of, fault_of, quoted, shortened


class Unwritable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", ["robot", "it's", 3, None, 1.5, ["a", 1], ("a",), {"a": [1]}, b"x", True, -(2**63)])
def test_short_values_are_quoted_as_python_writes_them(value: object) -> None:
    assert quoted(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**7,
        b"x" * 10**7,
        ["x" * 1000] * 10**5,
        {str(key): "x" * 1000 for key in range(1000)},
        nested(5000),
        10**10000,
        "\ud800" * 300,
        "\0" * 300,
        np.zeros((100, 100)),
        torch.zeros(100, 100, device="meta"),
        Unwritable(),
        [Unwritable()],
    ],
    ids=lambda value: type(value).__name__,
)
def test_quoted_values_are_short_and_can_be_encoded(value: object) -> None:
    text = quoted(value)
    assert 0 < len(text) <= QUOTED
    assert text.encode().decode().isprintable()


def test_long_texts_are_cut_at_their_end() -> None:
    assert quoted("x" * 500) == "'" + "x" * (QUOTED - 4) + "..."
    assert shortened("x" * QUOTED) == "x" * QUOTED
    assert shortened("x" * (QUOTED + 1)) == "x" * (QUOTED - 3) + "..."
    assert shortened("a\nb\ud800\0é") == "a\\nb\\ud800\\x00é"
    assert len(shortened("\ud800" * 190)) == QUOTED


def test_an_exit_of_a_plugin_becomes_an_exception_and_ctrl_c_does_not() -> None:
    try:
        sys.exit(3)
    except SystemExit as error:
        error.add_note("in phase x")
        made = exception_of(error)
    assert fault_of(made).startswith("SystemExit: 3")
    assert f"({__file__}:" in fault_of(made)
    assert vars(made)["__notes__"] == ["in phase x"]
    assert exception_of(made) is made
    with pytest.raises(KeyboardInterrupt):
        exception_of(KeyboardInterrupt())
