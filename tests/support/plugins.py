"""Loaded plugins of the repository and of test modules."""

from importlib.metadata import EntryPoint

from omni.plugin.entries import ModelFamily
from omni.plugin.manager import Plugins, load_plugins
from tests.support.entry_points import own_entry_points


def plugins_of(*names: str, **modules: str) -> Plugins:
    """The repository's plugins called `names`, all of them if none is named, and others by name and module."""
    points = [EntryPoint(name, module, "omni") for name, module in modules.items()]
    plugins = load_plugins([*own_entry_points(*names), *points])
    for record in plugins.records:
        assert record.error is None, record.error
    return plugins


def family_of(name: str, module: str) -> ModelFamily:
    """The family of a test module with the functions `pipeline` and `write_checkpoint`."""
    return ModelFamily(name=name, model_types=(name,), pipeline=f"{module}:pipeline", tiny=f"{module}:write_checkpoint")
