"""Imports and calls the functions that entries and pipelines name. Torch-free, like the entries."""

from difflib import get_close_matches
from importlib import import_module
from typing import TypeVar

import msgspec

from omni.errors import ConfigError, OmniError, fault_of, plugin_error, plugin_setup, quoted, type_of
from omni.plugin.entries import ModelFamily
from omni.utils.origin import origin_of_module, with_origin, with_place
from omni.utils.struct_types import STRUCT_TYPES

_PATHS = ("connector", "kind", "pipeline", "processor", "tiny")
"""Fields of entries that are import paths."""

LONGEST_NAME = 100
"""Maximum length of the name of an entry, in characters."""

MadeT = TypeVar("MadeT")


def locate(path: str, field: str, code: object = None) -> object:
    """The object at `path`. Raises ConfigError for a malformed path or a missing object, PluginError if the import fails.

    code: the function that gave the path, named in errors.
    """
    if not is_import_path(path):
        problem = with_origin(f"{quoted(path)} is not an import path", code=code)
        raise ConfigError(field, problem, 'write "module:attribute"')
    module_name, _, attribute = path.partition(":")
    try:
        module = import_module(module_name)
    except OmniError:
        raise
    except (Exception, SystemExit) as error:
        problem = f"importing {module_name} failed: {fault_of(error, code)}"
        raise plugin_error(field, problem, "correct the plugin, or install the package that it imports") from error
    if attribute in vars(module):
        return vars(module)[attribute]
    near = get_close_matches(attribute, vars(module), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "name an attribute of the module"
    raise ConfigError(field, with_place(f"{module_name} has no {attribute!r}", origin_of_module(module)), hint)


def is_import_path(path: object) -> bool:
    """Whether `path` is `"module:attribute"`."""
    if not isinstance(path, str):
        return False
    module, colon, attribute = path.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def is_name(value: object) -> bool:
    """Whether errors and lists can show it as the name of a family, a kind, a modality, ..."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable() and value == value.strip()


def _check_types(types: object, field: str) -> None:
    if isinstance(types, str):
        raise plugin_error(
            field, f"is the text {types!r}, so each of its letters is a model type", f"write ({types!r},)"
        )
    if not isinstance(types, list | tuple) or not all(isinstance(each, str) and each for each in types):
        raise plugin_error(field, f"{quoted(types)} is not a tuple of model types", 'write ("my_model",)')
    if not types:
        raise plugin_error(field, "is empty, so that no checkpoint is of this family", 'write ("my_model",)')
    if len({*types}) < len(types):
        raise plugin_error(field, f"{quoted(types)} names one twice", "name each once")


def check_entry(entry: msgspec.Struct) -> None:
    """Raises PluginError for fields of an entry that cannot be right."""
    fields = msgspec.structs.asdict(entry)
    field = f"{type(entry).__name__} {quoted(fields['name'])}"
    if not is_name(fields["name"]):
        remedy = f"give printable text of at most {LONGEST_NAME} characters, without spaces around it"
        raise plugin_error(f"{field}.name", "is not a name", remedy)
    if isinstance(entry, ModelFamily):
        _check_types(entry.model_types, f"{field}.model_types")
    for name, path in fields.items():
        if name in _PATHS and path is not None and not is_import_path(path):
            raise plugin_error(f"{field}.{name}", f"{quoted(path)} is not an import path", 'write "module:attribute"')
    for each in msgspec.structs.fields(entry):
        try:
            with STRUCT_TYPES:
                msgspec.convert(fields[each.name], each.type)
        except msgspec.ValidationError as error:
            problem = f"{quoted(fields[each.name])} does not fit: {error}"
            raise plugin_error(
                f"{field}.{each.name}", problem, "use the type that the entry's class declares"
            ) from error


def call_entry(path: str, field: str, expected: type[MadeT]) -> MadeT:
    """Calls the factory at `path` without arguments. Raises PluginError if it fails, or returns anything but an `expected`."""
    build = locate(path, field)
    if not callable(build):
        problem = with_origin(f"{path} is a {type(build).__name__}, which cannot be called", code=build)
        raise plugin_error(field, problem, "name a class or a function")
    with plugin_setup(field, f"correct {path}", build):
        made = build()
    return expect(made, expected, field, build)


def expect(made: object, expected: type[MadeT], field: str, code: object) -> MadeT:
    """The result of a function or class `code`. Raises PluginError if it is not an `expected`, which is a class or a runtime
    protocol."""
    if isinstance(made, expected):
        return made
    problem = with_origin(f"gave {given(made, expected)}", code=code)
    name = "a bool" if expected is bool else f"an {expected.__module__}.{expected.__name__}"
    raise plugin_error(field, problem, f"return {name}")


def given(made: object, expected: type) -> str:
    """The value that plugin code gave instead of an `expected`, in words: its type, and the members that it lacks."""
    lacks = sorted(name for name in _members(expected) if name not in dir(made)) if made is not None else []
    return f"{type_of(made)} without {', '.join(lacks)}" if lacks else type_of(made)


def _members(expected: type) -> list[str]:
    """Members of a protocol; none for a class."""
    if not vars(expected).get("_is_protocol", False):
        return []
    return [name for name in {*vars(expected), *vars(expected).get("__annotations__", {})} if not name.startswith("_")]
