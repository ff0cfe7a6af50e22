"""Finds plugins by entry point, one by one, so that a broken one harms only what needs it."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, Protocol, TypeVar

import pluggy

from omni import hookspecs
from omni.errors import PluginError
from omni.plugin.entries import ConnectorEntry, ModelFamily, StageKindEntry


class _Named(Protocol):
    @property
    def name(self) -> str: ...


EntryT = TypeVar("EntryT", bound=_Named)


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One entry point and how loading it went. error: a traceback, or None."""

    name: str
    module: str
    distribution: str
    error: str | None
    registered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registry(Generic[EntryT]):
    """What plugins registered under one hook, by name, and the plugin each came from."""

    what: str
    entries: Mapping[str, EntryT]
    owners: Mapping[str, str]
    broken: tuple[str, ...]

    def __getitem__(self, name: str) -> EntryT:
        """The entry called `name`. Raises PluginError, which mentions plugins that failed to load."""
        if name in self.entries:
            return self.entries[name]
        known = ", ".join(sorted(self.entries)) or "none"
        hint = f"; these plugins failed to load: {', '.join(self.broken)} (see `omni plugins`)" if self.broken else ""
        raise PluginError(
            f"there is no {self.what} {name!r}: known are {known}; install the plugin that brings it{hint}"
        )


@dataclass(frozen=True, slots=True)
class Plugins:
    """Everything that plugins brought. Frozen after `load_plugins`."""

    records: tuple[PluginRecord, ...]
    families: Registry[ModelFamily]
    kinds: Registry[StageKindEntry]
    connectors: Registry[ConnectorEntry]

    def family_of(self, model_type: str) -> ModelFamily | None:
        """The family that serves config.json's `model_type`."""
        return next((f for f in self.families.entries.values() if model_type in f.model_types), None)


def load_plugins(points: Iterable[EntryPoint] | None = None) -> Plugins:
    """Loads every plugin of the group `omni` (or just `points`).

    A plugin that fails to import, implements an unknown hook, or raises in a hook is recorded with its traceback and left out.
    Raises PluginError if two plugins claim one name.
    """
    found = sorted(entry_points(group=hookspecs.GROUP) if points is None else points, key=lambda point: point.name)
    loaded = [_load(point) for point in found]
    records = tuple(item.record for item in loaded)
    broken = tuple(record.name for record in records if record.error is not None)
    families = _registry("model family", [(i.record.name, i.families) for i in loaded], broken)
    _check_model_types(families)
    return Plugins(
        records=records,
        families=families,
        kinds=_registry("stage kind", [(i.record.name, i.kinds) for i in loaded], broken),
        connectors=_registry("connector", [(i.record.name, i.connectors) for i in loaded], broken),
    )


@dataclass(frozen=True, slots=True)
class _Loaded:
    record: PluginRecord
    families: Sequence[ModelFamily] = ()
    kinds: Sequence[StageKindEntry] = ()
    connectors: Sequence[ConnectorEntry] = ()


def _load(point: EntryPoint) -> _Loaded:
    distribution = point.dist.name if point.dist is not None else "?"
    try:
        module = point.load()
        families, kinds, connectors = _call_hooks(point.name, module)
    except Exception:
        return _Loaded(PluginRecord(point.name, point.value, distribution, traceback.format_exc()))
    names = (
        *(f"family {f.name}" for f in families),
        *(f"kind {k.name}" for k in kinds),
        *(f"connector {c.name}" for c in connectors),
    )
    return _Loaded(PluginRecord(point.name, point.value, distribution, None, names), families, kinds, connectors)


def _call_hooks(name: str, module: ModuleType) -> tuple[list[ModelFamily], list[StageKindEntry], list[ConnectorEntry]]:
    # A manager of its own for each plugin: one that raises cannot stop another's hooks, and typos are charged to their author.
    manager = pluggy.PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(module, name=name)
    manager.check_pending()
    hook = manager.hook
    return (
        _flat(hook.omni_model_families, ModelFamily),
        _flat(hook.omni_stage_kinds, StageKindEntry),
        _flat(hook.omni_connectors, ConnectorEntry),
    )


def _flat(hook: Callable[[], list[Sequence[EntryT]]], kind: type[EntryT]) -> list[EntryT]:
    entries = [entry for result in hook() for entry in result]
    for entry in entries:
        if not isinstance(entry, kind):
            raise PluginError(f"expected {kind.__name__} entries, got {entry!r}")
    return entries


def _registry(what: str, given: list[tuple[str, Sequence[EntryT]]], broken: tuple[str, ...]) -> Registry[EntryT]:
    entries: dict[str, EntryT] = {}
    owners: dict[str, str] = {}
    for plugin, brought in given:
        for entry in brought:
            if entry.name in entries:
                first = owners[entry.name]
                raise PluginError(
                    f"plugins {first!r} and {plugin!r} both claim the {what} {entry.name!r}: uninstall one of them"
                )
            entries[entry.name] = entry
            owners[entry.name] = plugin
    return Registry(what, entries, owners, broken)


def _check_model_types(families: Registry[ModelFamily]) -> None:
    seen: dict[str, str] = {}
    for family in families.entries.values():
        for model_type in family.model_types:
            if model_type in seen:
                first, second = families.owners[seen[model_type]], families.owners[family.name]
                raise PluginError(
                    f"plugins {first!r} and {second!r} both claim model type {model_type!r}: uninstall one of them"
                )
            seen[model_type] = family.name
