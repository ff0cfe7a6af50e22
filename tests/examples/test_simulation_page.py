"""The listings of docs/simulation.md run as a reader would run them, with the results that the page states."""

import re
from typing import Any

import pytest

from tests.support.entry_points import REPOSITORY

PAGE = (REPOSITORY / "docs" / "simulation.md").read_text()
ORDERED, TRAFFIC = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WAIT = "device.wait(copies, device.record(stage))\n"


def test_an_ordered_copy_has_no_race() -> None:
    names: dict[str, Any] = {"__name__": "listing"}
    exec(ORDERED, names)
    assert names["host"].tolist() == [2.0] * 4


def test_a_copy_without_its_wait_is_a_race() -> None:
    assert ORDERED.count(WAIT) == 1
    without = ORDERED.replace(WAIT, "").replace("assert device.run", "device.run")
    with pytest.raises(AssertionError, match="fetch"):
        exec(without, {"__name__": "listing"})


@pytest.mark.usefixtures("reader_s_folder")
def test_the_traffic_of_the_page_passes() -> None:
    names: dict[str, Any] = {"__name__": "listing"}
    exec(TRAFFIC, names)
    names["test_traffic_changes_no_text"]()
