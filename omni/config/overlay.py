"""Applies settings to options, and records the origin of each."""

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from omni.config.builder import OptionsBuilder
from omni.config.layer import SettingsLayer
from omni.errors import ConfigError
from omni.utils.struct_types import STRUCT_TYPES

DEFAULT = "default"
"""The origin of a default of the options' type."""
FAMILY = "family"
"""The origin of the model family's value for this checkpoint."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """path: dotted, as `"thinker.sampling.top_k"`. origin: `DEFAULT`, `FAMILY`, or that of the last `SettingsLayer` with it."""

    path: str
    value: object
    origin: str


def overlay(
    options: Mapping[str, msgspec.Struct], layers: Sequence[SettingsLayer], others: Sequence[str] = ()
) -> tuple[dict[str, msgspec.Struct], tuple[Setting, ...]]:
    """The options with each layer applied in turn, and the origin of every field of the result.

    options: by the first part of their paths, as a stage's name. others: first parts that are set elsewhere, for
        errors.

    Raises ConfigError, naming path (and file), for an unknown stage or option and for a value of the wrong type or out
    of range; it names several paths if they contradict. Ranges are checked in the result, so a value may be set before
    its bound.
    """
    builders = {name: OptionsBuilder(name, before) for name, before in options.items()}
    origins: dict[str, SettingsLayer] = {}
    for layer in layers:
        for path, value in layer.values.items():
            name = next((name for name in builders if path == name or path.startswith(f"{name}.")), None)
            write = _Write(layer, origins, path)
            if name is None:
                known = ", ".join((*builders, *others))
                raise write.error(f"there is no stage {path.partition('.')[0]!r}", f"use one of {known}")
            option = path[len(name) + 1 :]
            write.put(builders[name], option, value)
    changed = {name: builder.build(origins) for name, builder in builders.items()}
    settings = []
    for name, final in changed.items():
        for path, value, untouched in _leaves(name, final, _defaults(type(final))):
            origin = _origin(path, origins) or (DEFAULT if untouched else FAMILY)
            settings.append(Setting(path=path, value=value, origin=origin))
    return changed, tuple(settings)


class _Write:
    """One value to apply."""

    def __init__(self, layer: SettingsLayer, origins: dict[str, SettingsLayer], path: str) -> None:
        self._layer = layer
        self._origins = origins
        self._path = path

    def error(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(self._layer.name(self._path), problem, remedy)

    def put(self, options: OptionsBuilder, option: str, value: object) -> None:
        """Replaces the field `option` (dotted) of `options`; a table replaces several."""
        table = _table_in(value)
        if not option and table is not None:
            for key, inside in table.items():
                _Write(self._layer, self._origins, f"{options.path}.{key}").put(options, key, inside)
            return
        name, _, rest = option.partition(".")
        types = get_type_hints(options.type)
        if name not in types:
            problem = f"there is no option {name!r}" if name else "names no option"
            raise self.error(problem, f"use one of {', '.join(types)}")
        inner = options.inner(name) if rest or table is not None else None
        if inner is not None:
            self.put(inner, rest, value)
        elif rest:
            raise self.error(f"{name!r} has no fields", f"set {name} itself")
        else:
            options.put(name, self._convert(value, types[name]))
            path = f"{options.path}.{name}"
            for inside in [known for known in self._origins if known.startswith(f"{path}.")]:
                del self._origins[inside]
            self._origins[path] = self._layer

    def _convert(self, value: object, wanted: Any) -> object:
        problem = ""
        for candidate in _readings(value, strict=self._layer.file):
            try:
                # Keys are text in JSON and TOML, even if they are ids.
                with STRUCT_TYPES:
                    return msgspec.convert(candidate, wanted, str_keys=True)
            except msgspec.ValidationError as error:
                problem = problem or str(error)
        raise self.error(f"{value!r} does not fit: {problem}", _remedy(wanted))


_WORDS: dict[object, str] = {
    tuple[int, ...]: "a list such as [1,2]",
    tuple[str, ...]: 'a list such as ["a","b"]',
    tuple[tuple[int, ...], ...]: "a list such as [[1,2],[3]]",
    str: "a text",
    NoneType: "none",
}


def _remedy(wanted: Any) -> str:
    """What to give for an option of this type. The problem names the types of others than choices, lists and texts."""
    forms: list[str] = []
    for kind in get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,):
        if get_origin(kind) is Literal:
            forms += map(repr, get_args(kind))
        elif kind in _WORDS:
            forms.append(_WORDS[kind])
        else:
            return "give a value of that type"
    return f"use one of {', '.join(forms)}" if get_origin(wanted) is Literal else f"give {' or '.join(forms)}"


def _table_in(value: object) -> Mapping[str, object] | None:
    """A table of fields, as a mapping or as JSON."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = msgspec.json.decode(value.encode())
        except msgspec.DecodeError:
            return None
    return value if isinstance(value, Mapping) else None


def _readings(value: object, *, strict: bool) -> list[object]:
    """Possible meanings of a value, the most likely first. TOML has no null, so `"none"` stands for it in files too."""
    if not isinstance(value, str):
        return [value]
    if value.lower() in ("none", "null"):
        return [None, value]
    if strict:
        return [value]
    try:
        return [msgspec.json.decode(value.encode()), value]
    except msgspec.DecodeError:
        return [{"true": True, "false": False}.get(value.lower(), value), value]


def _origin(path: str, origins: Mapping[str, SettingsLayer]) -> str | None:
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins[path].origin if path else None


def _leaves(at: str, options: msgspec.Struct, defaults: Mapping[str, object]) -> Iterator[tuple[str, object, bool]]:
    """Path and value of every field, including nested options, and whether it is the default."""
    for name, value in msgspec.structs.asdict(options).items():
        default = defaults.get(name, msgspec.NODEFAULT)
        if isinstance(value, msgspec.Struct):
            known = msgspec.structs.asdict(default) if isinstance(default, msgspec.Struct) else {}
            yield from _leaves(f"{at}.{name}", value, known)
        else:
            yield f"{at}.{name}", value, value == default


def _defaults(kind: type[msgspec.Struct]) -> dict[str, object]:
    """The defaults by field. Required fields have none."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            values[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            values[field.name] = field.default_factory()
    return values
