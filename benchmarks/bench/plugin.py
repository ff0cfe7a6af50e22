"""The benchmarks' own stage kind, registered as any plugin's."""

from importlib.metadata import EntryPoint, entry_points

from omni.hookspecs import GROUP, hookimpl
from omni.plugin.entries import StageKindEntry
from omni.plugin.manager import Plugins, load_plugins


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="gather", kind="bench.gather:GatherKind")]


def bench_plugins() -> Plugins:
    """Installed plugins, and this one."""
    return load_plugins([*entry_points(group=GROUP), EntryPoint("bench", __name__, GROUP)])
