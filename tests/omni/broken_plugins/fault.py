"""The table of faults: an author's mistake, and parts of the error."""

from dataclasses import dataclass
from typing import Literal

from omni.errors import OmniError

HERE = "# here"
"""Marks the line that an error has to name."""

At = Literal["load", "open", "request", "stage"]


@dataclass(frozen=True, slots=True)
class Fault:
    """file, old, new: the change; None for the whole file. `# here` marks the line that the error names. says: parts of the
    message: field, problem and remedy. at: when it shows. settings: of the user, by path. also: a change of a second file.

    "load": the plugin is recorded as broken. "open": the model is not opened. "request": its request fails, and every
    other one is answered. "stage": the stage `closed` is closed too; requests that do not need it are answered.
    """

    name: str
    at: At
    kind: type[OmniError]
    file: str
    old: str | None
    new: str
    says: tuple[str, ...]
    package: str = "plain_talk"
    closed: str = ""
    bad: str = "break!"
    settings: tuple[tuple[str, object], ...] = ()
    also: tuple[str, str, str] | None = None
