"""Imports objects named by `"module:attribute"` strings."""

from importlib import import_module

from omni.errors import ConfigError, PluginError


def locate(path: str, field: str) -> object:
    """The object at `path`. Raises ConfigError for a malformed path or a missing object, PluginError if the import fails."""
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(field, f"{path!r} is not an import path", 'write "module:attribute"')
    try:
        module = import_module(module_name)
    except Exception as error:
        raise PluginError(f"{field}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    try:
        return vars(module)[attribute]
    except KeyError:
        raise ConfigError(field, f"{module_name} has no {attribute!r}", "name an attribute of the module") from None
