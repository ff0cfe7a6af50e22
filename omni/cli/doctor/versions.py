"""Installed and required versions."""

import re
from dataclasses import dataclass
from importlib import metadata

DISTRIBUTION = "omni-stages"
_REQUIREMENT = re.compile(r"""([\w.-]+)\s*(?:>=\s*([\d.]+))?[^;]*(?:;.*extra\s*==\s*["']([\w-]+)["'])?""")


@dataclass(frozen=True, slots=True)
class Requirement:
    """extra: the optional part that requires it; None if it is always required. least: empty for any version."""

    name: str
    least: str
    extra: str | None


def installed(name: str) -> str | None:
    """The version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[Requirement]:
    """Requirements of the installed distribution; empty if it is not installed."""
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    matches = [match for text in texts if (match := _REQUIREMENT.match(text))]
    return [Requirement(match[1], match[2] or "", match[3]) for match in matches]


def older(version: str, than: str) -> bool:
    """Compares the leading numbers: 2.11.0+cpu is 2.11.0, and not older than 2.11."""
    one, other = _numbers(version), _numbers(than)
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)) < other + (0,) * (length - len(other))


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
