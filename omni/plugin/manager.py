"""Loads plugins by entry point, each on its own, so that a broken one affects only its own users."""

import inspect
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, Protocol, TypeVar

import pluggy

from omni import hookspecs
from omni.errors import ConfigError, PluginError, plugin_error, plugin_setup, quoted, type_of
from omni.plugin.entries import (
    ConnectorEntry,
    DrafterEntry,
    LogitsProcessorEntry,
    ModelFamily,
    PipelineExtension,
    StageKindEntry,
)
from omni.plugin.locate import check_entry
from omni.utils.origin import with_origin

_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("omni_"))
_HOOKIMPL = f"{hookspecs.GROUP}_impl"
"""pluggy's mark on an implementation."""
_TORCH = "torch"
_IMPORTS_TORCH = "its entry module imports torch, which takes seconds at every command; import it where entries point"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


EntryT = TypeVar("EntryT", bound=_Named)
ClaimT = TypeVar("ClaimT")


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One entry point and its outcome. error: a traceback, or None. warnings: faults that do not prevent its use."""

    name: str
    module: str
    distribution: str
    error: str | None
    registered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registry(Generic[EntryT]):
    """The entries of one hook by name, and the plugin of each. contested: names that two plugins claim, with the error of a use."""

    what: str
    entries: Mapping[str, EntryT]
    owners: Mapping[str, str]
    broken: tuple[str, ...]
    contested: Mapping[str, str]

    def __getitem__(self, name: str) -> EntryT:
        """The entry of that name. Raises PluginError with the plugins that failed to load, or that both claim the name."""
        if name in self.entries:
            return self.entries[name]
        if name in self.contested:
            raise PluginError(self.contested[name])
        known = ", ".join(sorted(self.entries)) or "none"
        hint = f"; these plugins failed to load: {', '.join(self.broken)} (see `omni plugins`)" if self.broken else ""
        near = get_close_matches(name, self.entries, n=1, cutoff=0.8)
        meant = f"did you mean {near[0]!r}? If not, " if near else ""
        raise PluginError(
            f"there is no {self.what} {name!r}: known are {known}; {meant}install the plugin that brings it{hint}"
        )


@dataclass(frozen=True, slots=True)
class Plugins:
    """The entries of all plugins. Frozen after `load_plugins`."""

    records: tuple[PluginRecord, ...]
    families: Registry[ModelFamily]
    kinds: Registry[StageKindEntry]
    connectors: Registry[ConnectorEntry]
    processors: Registry[LogitsProcessorEntry]
    drafters: Registry[DrafterEntry]
    extensions: Registry[PipelineExtension]

    model_types: Mapping[str, str]
    """Families by `model_type` of config.json."""
    contested_types: Mapping[str, str]
    """Model types that two plugins claim, with the error for their use."""

    def family_of(self, model_type: str, chosen: str | None = None) -> ModelFamily | None:
        """The family of a `model_type` of config.json, if any. chosen: the name of one that serves it.

        Raises PluginError if two claim the type and none is chosen, or if the chosen one is not installed, and
        ConfigError if that does not serve the type."""
        if chosen is not None:
            family = self.families[chosen]
            if model_type not in family.model_types:
                problem = f"{chosen!r} does not serve model type {model_type!r}"
                raise ConfigError("family", problem, f"it serves {', '.join(family.model_types)}")
            return family
        if model_type in self.contested_types:
            raise PluginError(self.contested_types[model_type])
        name = self.model_types.get(model_type)
        return self.families[name] if name is not None else None

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Errors for names that two plugins claim. Only the use of such a name fails."""
        registries = (
            *(self.families, self.kinds, self.connectors),
            *(self.processors, self.drafters, self.extensions),
        )
        contested = [*(registry.contested for registry in registries), self.contested_types]
        return tuple(problem for problems in contested for problem in problems.values())


def load_plugins(points: Iterable[EntryPoint] | None = None) -> Plugins:
    """Loads every plugin of the group `omni`, or only `points`. One that fails to import, implements an unknown hook, or raises in
    a hook is recorded with its traceback and left out. A name that two plugins claim belongs to neither."""
    found = sorted(entry_points(group=hookspecs.GROUP) if points is None else points, key=lambda point: point.name)
    loaded = [_load(point) for point in found]
    records = tuple(item.record for item in loaded)
    broken = tuple(record.name for record in records if record.error is not None)
    brought = [(i.record.name, family) for i in loaded for family in i.families]
    claims = [(plugin, model_type, family.name) for plugin, family in brought for model_type in family.model_types]
    types, contested_types = _model_types(claims)
    return Plugins(
        records=records,
        families=_registry("model family", [(i.record.name, i.families) for i in loaded], broken),
        kinds=_registry("stage kind", [(i.record.name, i.kinds) for i in loaded], broken),
        connectors=_registry("connector", [(i.record.name, i.connectors) for i in loaded], broken),
        processors=_registry("logits processor", [(i.record.name, i.processors) for i in loaded], broken),
        drafters=_registry("drafter", [(i.record.name, i.drafters) for i in loaded], broken),
        extensions=_registry("pipeline extension", [(i.record.name, i.extensions) for i in loaded], broken),
        model_types=types,
        contested_types=contested_types,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    record: PluginRecord
    families: Sequence[ModelFamily] = ()
    kinds: Sequence[StageKindEntry] = ()
    connectors: Sequence[ConnectorEntry] = ()
    processors: Sequence[LogitsProcessorEntry] = ()
    drafters: Sequence[DrafterEntry] = ()
    extensions: Sequence[PipelineExtension] = ()


def _load(point: EntryPoint) -> _Loaded:
    distribution = point.dist.name if point.dist is not None else "?"
    record = PluginRecord(point.name, point.value, distribution, None)
    had_torch = _TORCH in sys.modules
    try:
        module = point.load()
        if _TORCH in sys.modules and not had_torch:
            record = replace(record, warnings=(_IMPORTS_TORCH,))
        return _call_hooks(record, module)
    except (Exception, SystemExit):  # a module may exit the interpreter; the other plugins still load
        return _Loaded(record=replace(record, error=traceback.format_exc()))


def _call_hooks(record: PluginRecord, module: object) -> _Loaded:
    # One plugin manager per plugin, to attribute errors and unknown hooks.
    manager = pluggy.PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(module, name=record.name)
    _check_hooks(record, module)
    hook = manager.hook
    families = _flat(hook.omni_model_families, ModelFamily)
    kinds = _flat(hook.omni_stage_kinds, StageKindEntry)
    connectors = _flat(hook.omni_connectors, ConnectorEntry)
    processors = _flat(hook.omni_logits_processors, LogitsProcessorEntry)
    drafters = _flat(hook.omni_drafters, DrafterEntry)
    extensions = _flat(hook.omni_pipeline_extensions, PipelineExtension)
    for entry in (*families, *kinds, *connectors, *processors, *drafters, *extensions):
        check_entry(entry)
    names = (
        *(f"family {f.name}" for f in families),
        *(f"kind {k.name}" for k in kinds),
        *(f"connector {c.name}" for c in connectors),
        *(f"logits processor {p.name}" for p in processors),
        *(f"drafter {d.name}" for d in drafters),
        *(f"pipeline extension {e.name}" for e in extensions),
    )
    return _Loaded(
        record=replace(record, registered=names),
        families=families,
        kinds=kinds,
        connectors=connectors,
        processors=processors,
        drafters=drafters,
        extensions=extensions,
    )


def _check_hooks(record: PluginRecord, module: object) -> None:
    """Raises PluginError for a module without an implementation, and for one of a hook that does not exist."""
    if not isinstance(module, ModuleType):
        problem = f"is {type_of(module)}, not a module"
        raise plugin_error(f"entry point {record.name!r}", problem, "name the module alone, without a colon")
    marked = [name for name, value in vars(module).items() if _HOOKIMPL in _attributes(value)]
    unmarked = [name for name in vars(module) if name in _HOOKS and name not in marked]
    if unmarked:
        problem = f"is not marked as an implementation ({module.__file__})"
        raise plugin_error(f"{record.module}.{unmarked[0]}", problem, "put @omni.hookimpl above it")
    if not marked:
        problem = f"has no implementation of a hook ({module.__file__})"
        raise plugin_error(record.module, problem, f"mark a function with @omni.hookimpl: {', '.join(_HOOKS)}")
    for name in marked:
        if name not in _HOOKS:
            near = get_close_matches(name, _HOOKS, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]!r}?" if near else f"implement one of {', '.join(_HOOKS)}"
            raise plugin_error(f"{record.module}.{name}", with_origin("is not a hook", code=vars(module)[name]), remedy)


def _attributes(value: object) -> Mapping[str, object]:
    return vars(value) if inspect.isfunction(value) else {}


def _flat(hook: pluggy.HookCaller, kind: type[EntryT]) -> list[EntryT]:
    """The entries of a plugin's hook. Raises PluginError unless it returned a list of them."""
    found: list[EntryT] = []
    for implementation in hook.get_hookimpls():
        function = implementation.function
        with plugin_setup(hook.name, "correct the hook", function):
            returned = function()
        if not isinstance(returned, list | tuple):
            given = "None" if returned is None else f"one {type(returned).__name__}, not a list"
            problem = with_origin(f"returned {given}", code=function)
            raise plugin_error(hook.name, problem, f"return a list: [{kind.__name__}(...)]")
        for entry in returned:
            if not isinstance(entry, kind):
                problem = with_origin(f"expected {kind.__name__} entries, got {quoted(entry)}", code=function)
                raise plugin_error(hook.name, problem, f"return a list: [{kind.__name__}(...)]")
        found += returned
        names = [entry.name for entry in found]
        for name in names:
            if names.count(name) > 1:
                problem = with_origin(f"lists {quoted(name)} {names.count(name)} times", code=function)
                raise plugin_error(hook.name, problem, "list each entry once, under a name of its own")
    return found


def _registry(what: str, given: list[tuple[str, Sequence[EntryT]]], broken: tuple[str, ...]) -> Registry[EntryT]:
    claims = [(plugin, entry.name, entry) for plugin, brought in given for entry in brought]
    entries, owners, contested = _claims(what, claims)
    return Registry(what, entries, owners, broken, contested)


def _model_types(claims: list[tuple[str, str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Groups (plugin, model type, family): families by model type, and the errors of types that two of them serve."""
    types, _, contested = _claims("model type", claims)
    for model_type in contested:
        names = sorted({family for _, claimed, family in claims if claimed == model_type})
        if len(names) > 1:
            remedy = f"choose one with --family or Omni(family=): {', '.join(names)}"
            contested[model_type] = contested[model_type].replace("uninstall one of them", remedy)
    return types, contested


def _claims(
    what: str, claims: list[tuple[str, str, ClaimT]]
) -> tuple[dict[str, ClaimT], dict[str, str], dict[str, str]]:
    """Groups (plugin, name, item): items by name, their plugins, and an error for each name claimed twice."""
    items: dict[str, ClaimT] = {}
    owners: dict[str, str] = {}
    contested: dict[str, str] = {}
    for plugin, name, item in claims:
        if name in owners:
            who = f"plugins {owners[name]!r} and {plugin!r} both claim"
            if owners[name] == plugin:  # two entry points of that name, or two families of one plugin
                who = f"plugin {plugin!r} claims twice"
            contested[name] = f"{who} the {what} {name!r}: uninstall one of them"
            items.pop(name, None)
        else:
            owners[name], items[name] = plugin, item
    return items, owners, contested
