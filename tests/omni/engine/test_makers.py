"""Errors of a load name the code that chose the wrong value, unless it is from a file of the checkpoint."""

import json
from dataclasses import replace

import msgspec
import pytest

from omni.checkpoint import Checkpoint
from omni.config import FAMILY
from omni.engine import PipelineChoice, resolve_pipeline
from omni.errors import ConfigError
from omni.pipeline import Pipeline
from omni.plugin.manager import load_plugins
from omni_ar.options import ArOptions
from tests.support.entry_points import own_entry_points
from tests.support.tiny_text import write_text_model

PLUGINS = load_plugins(own_entry_points())
LENGTH = "text.max_model_len"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("text")
    write_text_model(folder, "tied")
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 7}))
    return Checkpoint(folder)


def with_other_options(pipeline: Pipeline) -> Pipeline:
    """The stage's `top_k`, and the length of its prompts."""
    stage = pipeline.stage("text")
    assert isinstance(stage.options, ArOptions)
    sampling = msgspec.structs.replace(stage.options.sampling, top_k=9)
    options = msgspec.structs.replace(stage.options, sampling=sampling, max_model_len=48)
    return pipeline.extended(stages=[msgspec.structs.replace(stage, options=options)])


@pytest.mark.parametrize("field", ["text.sampling.top_k", LENGTH])
def test_a_user_s_function_is_named_for_options_that_it_set(checkpoint: Checkpoint, field: str) -> None:
    plan = resolve_pipeline(checkpoint, PLUGINS, choice=PipelineChoice(wrap=with_other_options))
    with pytest.raises(ConfigError, match=r"^\S+: is wrong \(.*test_makers\.py:\d+\); mend it$"), plan.naming_makers():
        raise ConfigError(field, "is wrong", "mend it")


def test_a_family_is_not_named_for_a_default_of_generation_config(checkpoint: Checkpoint) -> None:
    plan = resolve_pipeline(checkpoint, PLUGINS)
    (top_k,) = [setting.value for setting in plan.settings if setting.path == "text.sampling.top_k"]
    assert top_k == 7
    with pytest.raises(ConfigError, match=r"^text\.sampling\.top_k: is wrong; mend it$"), plan.naming_makers():
        raise ConfigError("text.sampling.top_k", "is wrong", "mend it")


def test_a_family_is_named_for_an_option_that_it_set(checkpoint: Checkpoint) -> None:
    plan = resolve_pipeline(checkpoint, PLUGINS)
    settings = tuple(
        msgspec.structs.replace(each, origin=FAMILY) if each.path == LENGTH else each for each in plan.settings
    )
    with (
        pytest.raises(ConfigError, match=r"\(plugin .*omni_text.*\)"),
        replace(plan, settings=settings).naming_makers(),
    ):
        raise ConfigError(LENGTH, "is wrong", "mend it")


def test_a_family_is_named_for_a_stage_without_a_model(checkpoint: Checkpoint) -> None:
    plan = resolve_pipeline(checkpoint, PLUGINS)
    stages = tuple(msgspec.structs.replace(stage, model=None) for stage in plan.pipeline.stages)
    lacking = replace(plan, pipeline=msgspec.structs.replace(plan.pipeline, stages=stages))
    with pytest.raises(ConfigError, match=r"\(plugin .*omni_text.*\)"), lacking.naming_makers():
        raise ConfigError("pipeline.stages.text.model", "is missing", "name one")
