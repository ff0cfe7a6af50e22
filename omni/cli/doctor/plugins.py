"""The plugins, and those that failed to load."""

from collections.abc import Iterator

from omni.cli.doctor.check import Check, ok, problem
from omni.plugin.manager import PluginRecord, Plugins

_GROUP = "plugins"


def check_plugins(plugins: Plugins) -> Iterator[Check]:
    """A check for each plugin, and one for each name that two of them claim."""
    if not plugins.records:
        yield problem(_GROUP, "plugins", "none is installed", "install omni with pip, which brings its own")
    for record in plugins.records:
        yield _plugin(record)
    for conflict in plugins.conflicts:
        detail, _, remedy = conflict.rpartition(": ")
        yield problem(_GROUP, "conflict", detail, remedy)


def _plugin(record: PluginRecord) -> Check:
    if record.error is None:
        return ok(_GROUP, record.name, ", ".join(record.registered) or "registers nothing")
    remedy = f"`omni plugins --verbose` shows where; upgrade or uninstall {record.distribution}"
    return problem(_GROUP, record.name, f"is broken: {record.error.strip().splitlines()[-1]}", remedy)
