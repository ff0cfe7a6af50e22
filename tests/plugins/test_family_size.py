"""A family is small: what others could use is a building block, in `omni/` or `stages/`."""

import pytest

from tests.support.entry_points import REPOSITORY

LIMIT = 900
"""Lines of a family's own code, whatever they hold."""
FAMILIES = [path.parent.name for path in sorted((REPOSITORY / "plugins").glob("*/plugin.py"))]


def lines_of(family: str) -> int:
    files = sorted((REPOSITORY / "plugins" / family).rglob("*.py"))
    assert files
    return sum(len(path.read_text().splitlines()) for path in files)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_exceeds_the_limit(family: str) -> None:
    assert lines_of(family) <= LIMIT
