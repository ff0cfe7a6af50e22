"""`tests/support` holds what several folders of tests use; other helpers stand beside the tests that use them."""

import re
from functools import cache
from pathlib import Path

from tests.support.entry_points import REPOSITORY

SUPPORT = REPOSITORY / "tests" / "support"


@cache
def helpers_in(file: Path) -> frozenset[str]:
    """The modules of `tests/support` that a file imports, or names in a text, as an entry point does."""
    text = file.read_text()
    together = re.findall(r"^from tests\.support import (\w+(?:, \w+)*)$", text, re.MULTILINE)
    return frozenset(re.findall(r"tests\.support\.(\w+)", text)).union(*(names.split(", ") for names in together))


def folders_that_use(helper: str) -> set[Path]:
    found, pending = set(), {helper}
    users = [(file, helpers_in(file)) for root in ("tests", "examples") for file in (REPOSITORY / root).rglob("*.py")]
    reached = set(pending)
    while pending:
        one = pending.pop()
        for file, used in users:
            if one not in used:
                continue
            if file.parent != SUPPORT:
                found.add(file.parent)
            elif file.stem not in reached:
                reached.add(file.stem)
                pending.add(file.stem)
    return found


def test_every_helper_in_support_serves_several_folders() -> None:
    few = {}
    for file in SUPPORT.glob("*.py"):
        folders = folders_that_use(file.stem)
        if len(folders) < 2:
            few[file.stem] = sorted(folder.relative_to(REPOSITORY).as_posix() for folder in folders)
    assert not few, f"move these beside the tests that use them: {few}"
