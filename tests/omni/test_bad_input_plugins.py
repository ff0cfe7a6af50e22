"""Bad plugins and bad pipelines, found as installed ones are, by entry point."""

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest

from omni import CheckpointError, ConfigError, Omni, OmniError, PluginError
from tests.support.entry_points import own_entry_points
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, lengths

QWEN = ("ar", "encoder", "vocoder", "local", "qwen3_omni")
BROKEN = "raise RuntimeError('no licence')"
FAMILY = """
    from omni.hookspecs import hookimpl
    from omni.plugin.entries import ModelFamily

    @hookimpl
    def omni_model_families():
        return [ModelFamily(name="{name}", model_types=("{model_type}",), pipeline="{module}:pipeline")]
"""
BENT = """
    import msgspec
    from omni.pipeline import Edge, PipelineOutput
    from omni_qwen3_omni.pipeline import pipeline as straight

    def pipeline(checkpoint):
        pipeline = straight(checkpoint)
        return msgspec.structs.replace(pipeline, family="bent", {change})
"""

Install = Callable[..., None]


def family_of(name: str, model_type: str) -> str:
    return dedent(FAMILY).replace("{name}", name).replace("{model_type}", model_type)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Hides all installed plugins but these: the repository's plugins `names`, and sources."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(names: tuple[str, ...], **sources: str) -> None:
        points = own_entry_points(*names)
        for name, source in sources.items():
            module = f"{tmp_path.name}_{name}"
            (tmp_path / f"{module}.py").write_text(dedent(source).replace("{module}", module))
            points.append(EntryPoint(name, module, "omni"))
        monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: points)

    return install


@pytest.fixture
def weightless(tmp_path: Path) -> Path:
    """A checkpoint without weights: its refusals are before a weight is read."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_checkpoint(3, **SHAPE).iterdir():
        if not file.name.startswith("model"):
            (model / file.name).symlink_to(file)
    return model


def error_of(model: Path, kind: type[OmniError]) -> str:
    with pytest.raises(kind) as caught:
        Omni(model, device="cpu")
    return str(caught.value)


def test_a_broken_plugin_that_is_not_needed(install: Install) -> None:
    install(QWEN, fabric=BROKEN)
    with Omni(tiny_checkpoint(3, **SHAPE), device="cpu") as omni:
        result = omni.generate("hi", sampling=lengths(4, 4), stream=False)
    assert result.usage.tokens == {"thinker": 4, "talker": 5}


KINDS = "pipeline.stages.code2wav.kind: there is no stage kind 'vocoder': known are ar, encoder; install the plugin that brings it"
UNSERVED = "config.json: model_type: no plugin serves model type 'qwen3_omni_moe'; known are"
LACKS: dict[str, tuple[str, type[OmniError], str, str]] = {
    "a kind": ("vocoder", PluginError, KINDS, "; these plugins failed to load: vocoder (see `omni plugins`)"),
    "the family": ("qwen3_omni", CheckpointError, UNSERVED, " (failed to load: qwen3_omni, see `omni plugins`)"),
    "the connector": (
        "local",
        PluginError,
        "there is no connector 'local'",
        "failed to load: local (see `omni plugins`)",
    ),
}


@pytest.mark.parametrize("what", LACKS)
@pytest.mark.parametrize("broken", [True, False])
def test_a_plugin_that_is_needed(install: Install, weightless: Path, what: str, broken: bool) -> None:
    name, kind, problem, failed = LACKS[what]
    install(tuple(other for other in QWEN if other != name), **({name: BROKEN} if broken else {}))
    message = error_of(weightless, kind)
    assert message.startswith(problem)
    assert (failed in message) == broken


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "edges=(*pipeline.edges, Edge(producer='code2wav', consumer='thinker'))",
            "pipeline.edges: form a cycle among thinker, talker, code2wav; remove an edge",
        ),
    ],
)
def test_a_bad_pipeline(install: Install, weightless: Path, change: str, message: str) -> None:
    family = family_of("bent", "qwen3_omni_moe")
    install(("ar", "encoder", "vocoder", "local"), bent=family + dedent(BENT).replace("{change}", change))
    place = r" \(/.*_bent\.py:13\)"
    found = error_of(weightless, ConfigError)
    assert re.search(place, found)
    assert re.sub(place, "", found) == message


def test_a_pipeline_that_raises(install: Install, weightless: Path) -> None:
    family = family_of("bent", "qwen3_omni_moe")
    install(QWEN[:-1], bent=family + "def pipeline(checkpoint):\n    return 1 / 0\n")
    assert "families.bent.pipeline: ZeroDivisionError" in error_of(weightless, PluginError)
