"""What is said of values in a checkpoint's files that cannot be right."""

from collections.abc import Callable

import pytest

from omni.checkpoint.checks import Section, require_index
from omni.errors import CheckpointError


@pytest.mark.parametrize(("value", "fits"), [(0, True), (4, True), (5, False), (-1, False)])
def test_indices_are_checked(value: int, fits: bool) -> None:
    if fits:
        require_index("config.json: token", value, 5)
        return
    with pytest.raises(CheckpointError, match=rf"config\.json: token: {value} is out of range, 0 to 4; use the file"):
        require_index("config.json: token", value, 5)


CONFIG = {
    "kind": "plain",
    "heads": 6,
    "kv_heads": 3,
    "layers": [0, 4],
    "voices": {"ann": 2, "bob": 7},
    "part": {"width": 8, "none": None, "empty": 0},
}


def test_a_section_that_fits() -> None:
    whole = Section(CONFIG)
    whole.require_equal({"kind": "plain", "heads": 6})
    whole.require_multiple("heads", of="kv_heads")
    whole.require_index(8, "heads", "kv_heads")
    whole.require_indices(8, "layers", "voices")
    assert (whole["kind"], whole.part("part")["width"], whole.get("heads"), whole.get("tails")) == ("plain", 8, 6, None)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda whole: whole.require_equal({"heads": 6, "kind": "other"}), "kind: is 'plain', not 'other'"),
        (
            lambda whole: whole.require_multiple("kv_heads", of="heads"),
            "kv_heads: is 3, no multiple of heads, which is 6",
        ),
        (lambda whole: whole.part("part").require_multiple("width", of="empty"), r"part\.empty: is 0, below 1"),
        (lambda whole: whole.part("part").require_multiple("empty", of="width"), r"part\.empty: is 0, below 1"),
        (lambda whole: whole.require_indices(4, "layers"), r"layers\[1\]: 4 is out of range, 0 to 3"),
        (lambda whole: whole.require_indices(7, "voices"), r"voices\.bob: 7 is out of range, 0 to 6"),
        (lambda whole: whole.require_index(7, "kind"), "kind: 'plain' is out of range"),
        (lambda whole: whole.part("part").require_index(7, "none"), r"part\.none: None is out of range"),
        (lambda whole: whole.require_index(7, "layers"), r"layers: \[0, 4\] is out of range"),
        (lambda whole: whole.require(False, "heads", "are odd"), "heads: are odd"),
    ],
)
def test_what_is_wrong_in_a_section_is_named(check: Callable[[Section], None], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}.*; use the file that belongs"):
        check(Section(CONFIG))
