"""The plugin's hooks, found by entry point. Imports no torch."""

from omni import hookimpl
from omni.plugin import DrafterEntry


@hookimpl
def omni_drafters() -> list[DrafterEntry]:
    return [DrafterEntry(name="usual", drafter="omni_usual.drafter:make_drafter")]
