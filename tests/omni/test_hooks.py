"""Every hook: documented with its exact signature, tested by name, with an example that runs."""

import ast
import inspect
import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest

from omni import hookspecs
from omni.plugin import (
    ConnectorEntry,
    DrafterEntry,
    LogitsProcessorEntry,
    ModelFamily,
    PipelineExtension,
    StageKindEntry,
)
from omni.plugin.manager import Plugins, load_plugins
from tests.support.entry_points import REPOSITORY

SPEC = f"{hookspecs.GROUP}_spec"
"""The attribute that pluggy's marker leaves on a specification."""
HOOKS = {
    name: function for name, function in inspect.getmembers(hookspecs, inspect.isfunction) if SPEC in vars(function)
}
DOCS = (REPOSITORY / "docs" / "hooks.md").read_text()


def heading(name: str) -> str:
    """A hook's name and signature, as Python prints it, with the modules of types left out."""
    signature = str(inspect.signature(HOOKS[name]))
    return f"## `{name}{re.sub(r'[a-z_.]+[.](?=[A-Z])', '', signature)}`"


def example(name: str) -> str:
    """The code in a hook's docstring."""
    doc = inspect.getdoc(HOOKS[name]) or ""
    return dedent(doc.partition("Example:\n")[2])


def test_there_are_hooks():
    assert len(HOOKS) >= 3
    assert all(name.startswith("omni_") for name in HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_documented(name: str):
    assert heading(name) in DOCS.splitlines()


def test_no_hook_is_documented_that_does_not_exist():
    documented = re.findall(r"^## `(omni_\w+)", DOCS, re.MULTILINE)
    assert sorted(documented) == sorted(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_have_tests(name: str):
    functions = {
        node.name for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert f"test_{name}" in functions


@pytest.mark.parametrize("name", HOOKS)
def test_docstrings_have_time_purpose_and_example(name: str):
    doc = inspect.getdoc(HOOKS[name]) or ""
    for word in ("Called ", "Returns ", "Example:"):
        assert word in doc


@pytest.mark.parametrize("name", HOOKS)
def test_the_documentation_shows_the_docstring_s_example(name: str):
    section = DOCS.partition(heading(name))[2].partition("\n## ")[0]
    assert example(name).strip() in section


Load = Callable[[str], Plugins]


@pytest.fixture
def load_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a plugin that is just the example of a hook."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "example_plugin", raising=False)

    def load(name: str) -> Plugins:
        imports = "from omni.hookspecs import hookimpl\nfrom omni.plugin import *\n"
        (tmp_path / "example_plugin.py").write_text(imports + example(name))
        plugins = load_plugins([EntryPoint("example", "example_plugin", hookspecs.GROUP)])
        assert plugins.records[0].error is None
        return plugins

    return load


def test_omni_model_families(load_example: Load):
    family = load_example("omni_model_families").family_of("my_model")
    assert family == ModelFamily(name="mine", model_types=("my_model",), pipeline="my_plugin.pipeline:pipeline")


def test_omni_stage_kinds(load_example: Load):
    entry = load_example("omni_stage_kinds").kinds["denoiser"]
    assert entry == StageKindEntry(name="denoiser", kind="my_plugin.kind:DenoiserKind")


def test_omni_connectors(load_example: Load):
    entry = load_example("omni_connectors").connectors["fabric"]
    assert entry == ConnectorEntry(name="fabric", connector="my_plugin.fabric:FabricConnector")


def test_omni_logits_processors(load_example: Load):
    entry = load_example("omni_logits_processors").processors["boost"]
    assert entry == LogitsProcessorEntry(name="boost", processor="my_plugin.boost:Boost")


def test_omni_drafters(load_example: Load):
    entry = load_example("omni_drafters").drafters["echo"]
    assert entry == DrafterEntry(name="echo", drafter="my_plugin.echo:EchoDrafter")


def test_omni_pipeline_extensions(load_example: Load):
    entry = load_example("omni_pipeline_extensions").extensions["mood"]
    assert entry == PipelineExtension(name="mood", extend="my_plugin.mood:extend", families=("my_family",))
