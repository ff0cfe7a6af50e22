"""Verdicts on faults, kept in a file from run to run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .generate import Fault


@dataclass
class Verdict:
    """The verdict on a fault that `tests` tests ran. why: the test that caught it, and how; None if all passed."""

    fault: Fault
    tests: int = 0
    why: str | None = None


class Verdicts:
    """The newest verdict of each fault, by name, written as soon as it is known: a run may be ended at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[str, object]] = {}
        if path.exists():
            self._rows = {row["name"]: row for row in json.loads(path.read_text())}

    def add(self, verdict: Verdict) -> None:
        fault = verdict.fault
        row = {"name": fault.name, "line": fault.line, "tests": verdict.tests, "why": verdict.why}
        self._rows[fault.name] = row
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(list(self._rows.values()), indent=1))
        part.replace(self._path)

    def of(self, fault: Fault) -> Verdict | None:
        """The verdict on a fault; None if it was never planted."""
        row = self._rows.get(fault.name)
        if row is None:
            return None
        return Verdict(fault, int(str(row["tests"])), None if row["why"] is None else str(row["why"]))


def is_settled(fault: Fault, verdicts: Verdicts, equivalent: Mapping[str, str]) -> bool:
    """Whether an earlier run caught the fault, or it is listed as equivalent."""
    known = verdicts.of(fault)
    return known is not None and (known.why is not None or fault.name in equivalent)
