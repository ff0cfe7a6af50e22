"""Plugins, good and broken, as modules on the path."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest

from omni.checkpoint import Checkpoint
from omni.engine import resolve_pipeline
from omni.errors import CheckpointError, ConfigError, PluginError
from omni.plugin.manager import Plugins, load_plugins
from tests.support.entry_points import own_entry_points

HEAD = """
from omni.hookspecs import hookimpl
from omni.plugin.entries import ConnectorEntry, LogitsProcessorEntry, ModelFamily, StageKindEntry
"""


def hook(name: str, entry: str) -> str:
    return f"\n@hookimpl\ndef {name}():\n    return [{entry}]\n"


FAMILY = hook(
    "omni_model_families", 'ModelFamily(name="{name}", model_types=("{model_type}",), pipeline="nowhere:pipeline")'
)
KIND = hook("omni_stage_kinds", 'StageKindEntry(name="{name}", kind="nowhere:Kind")')
CONNECTOR = hook("omni_connectors", 'ConnectorEntry(name="{name}", connector="nowhere:Connector")')
PROCESSOR = hook("omni_logits_processors", 'LogitsProcessorEntry(name="{name}", processor="nowhere:Processor")')

Load = Callable[..., Plugins]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads plugins given as the source of their entry modules."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(**sources: str) -> Plugins:
        points = []
        for name, source in sources.items():
            module = f"plugin_under_test_{name}"
            (tmp_path / f"{module}.py").write_text(HEAD + dedent(source))
            monkeypatch.delitem(sys.modules, module, raising=False)
            points.append(EntryPoint(name, module, "omni"))
        return load_plugins(points)

    return load


def error_of(plugins: Plugins, name: str) -> str:
    """The recorded traceback of a plugin, empty if it loaded."""
    (record,) = [record for record in plugins.records if record.name == name]
    return record.error or ""


def test_the_entries_of_a_plugin_are_registered_and_recorded(load: Load):
    plugins = load(
        mine=FAMILY.format(name="one", model_type="t1") + KIND.format(name="two") + PROCESSOR.format(name="three")
    )
    assert plugins.families["one"].model_types == ("t1",)
    assert plugins.kinds["two"].kind == "nowhere:Kind"
    assert plugins.processors["three"].processor == "nowhere:Processor"
    assert plugins.families.owners == {"one": "mine"}
    (record,) = plugins.records
    assert (record.name, record.module, record.error) == ("mine", "plugin_under_test_mine", None)
    assert record.registered == ("family one", "kind two", "logits processor three")


BROKEN = {
    "raises on import": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "imports what is missing": ("import a_module_nobody_has", "ModuleNotFoundError"),
    "is no python": ("def (", "SyntaxError"),
    "leaves the interpreter": ("raise SystemExit(3)", "SystemExit: 3"),
    "raises in its hook": ("@hookimpl\ndef omni_connectors():\n    return 1 / 0\n", "ZeroDivisionError"),
    "misspells a hook": (
        "@hookimpl\ndef omni_model_familys():\n    return []\n",
        "did you mean 'omni_model_families'?",
    ),
    "asks for an argument": ("@hookimpl\ndef omni_connectors(config):\n    return []\n", "config"),
    "gives the wrong entries": ("@hookimpl\ndef omni_stage_kinds():\n    return ['ar']\n", "expected StageKindEntry"),
    "gives no list": ("@hookimpl\ndef omni_stage_kinds():\n    return 7\n", "returned one int, not a list"),
    "names an unknown field": (
        "@hookimpl\ndef omni_stage_kinds():\n    return [StageKindEntry(name='a', kind='b:c', speed=1)]\n",
        "speed",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plugin_is_recorded_with_its_traceback_and_harms_no_other(load: Load, how: str):
    source, message = BROKEN[how]
    plugins = load(bad=source, good=KIND.format(name="mine"))
    assert "Traceback" in error_of(plugins, "bad")
    assert message in error_of(plugins, "bad")
    assert error_of(plugins, "good") == ""
    assert plugins.kinds["mine"].name == "mine"
    assert plugins.kinds.broken == ("bad",)


def test_a_plugin_that_raises_half_way_brings_nothing(load: Load):
    plugins = load(
        bad=FAMILY.format(name="one", model_type="t1") + "@hookimpl\ndef omni_connectors():\n    return 1 / 0\n"
    )
    assert "ZeroDivisionError" in error_of(plugins, "bad")
    assert plugins.families.entries == {}


def test_a_module_that_does_not_exist_is_recorded():
    plugins = load_plugins([EntryPoint("gone", "a_module_nobody_has.plugin", "omni")])
    assert "ModuleNotFoundError" in error_of(plugins, "gone")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (KIND, "stage kind 'same'"),
        (CONNECTOR, "connector 'same'"),
        (PROCESSOR, "logits processor 'same'"),
        (FAMILY, "model family 'same'"),
    ],
)
def test_two_plugins_that_claim_one_name_fail_only_its_use(load: Load, source: str, what: str):
    plugins = load(
        first=source.format(name="same", model_type="t1"),
        second=source.format(name="same", model_type="t2"),
        third=source.format(name="other", model_type="t3"),
    )
    problem = f"plugins 'first' and 'second' both claim the {what}: uninstall one of them"
    assert plugins.conflicts == (problem,)
    registries = (plugins.kinds, plugins.connectors, plugins.processors, plugins.families)
    registry = next(r for r in registries if r.what == what.split(" '")[0])
    assert registry["other"].name == "other"
    with pytest.raises(PluginError) as caught:
        registry["same"]
    assert str(caught.value) == problem


def test_two_plugins_that_claim_one_model_type_fail_only_its_use(load: Load):
    plugins = load(
        first=FAMILY.format(name="one", model_type="same"),
        second=FAMILY.format(name="two", model_type="same"),
        third=FAMILY.format(name="three", model_type="other"),
    )
    assert plugins.family_of("other") == plugins.families["three"]
    with pytest.raises(PluginError) as caught:
        plugins.family_of("same")
    choose = "choose one with --family or Omni(family=): one, two"
    assert str(caught.value) == f"plugins 'first' and 'second' both claim the model type 'same': {choose}"
    assert plugins.family_of("same", "two") == plugins.families["two"]
    with pytest.raises(ConfigError, match="family: 'three' does not serve model type 'same'; it serves other"):
        plugins.family_of("same", "three")
    with pytest.raises(PluginError, match="there is no model family 'four'"):
        plugins.family_of("same", "four")


def test_an_unknown_name_mentions_broken_plugins(load: Load):
    plugins = load(bad="raise RuntimeError", good=KIND.format(name="mine"))
    for registry in (plugins.kinds, plugins.connectors, plugins.processors, plugins.families):
        with pytest.raises(PluginError, match=r"these plugins failed to load: bad \(see `omni plugins`\)"):
            registry["wanted"]


def test_a_model_type_that_a_broken_plugin_might_serve_mentions_it(load: Load, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "t9"}')
    plugins = load(bad="raise RuntimeError", good=FAMILY.format(name="one", model_type="t1"))
    words = r"no plugin serves model type 't9'; known are t1 \(failed to load: bad, see"
    with pytest.raises(CheckpointError, match=words):
        resolve_pipeline(Checkpoint(tmp_path), plugins)


def test_every_own_plugin_loads():
    plugins = load_plugins(own_entry_points())
    assert [record.error for record in plugins.records if record.error] == []
    assert all(record.registered for record in plugins.records)
