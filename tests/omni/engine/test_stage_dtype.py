"""A stage's dtype: its own, or else the engine's."""

from pathlib import Path

import msgspec
import pytest

from omni.checkpoint import Checkpoint
from omni.config import DEFAULT, FAMILY, Setting, SettingsLayer
from omni.device.meta import MetaDevice
from omni.engine import Plan, load_stages, resolve_pipeline
from omni.engine.configuration import configure
from omni.errors import ConfigError
from omni.plugin.manager import load_plugins
from tests.support.entry_points import own_entry_points

PLUGINS = load_plugins(own_entry_points())


def _plan(checkpoint: Checkpoint, **settings: object) -> Plan:
    return resolve_pipeline(
        checkpoint, PLUGINS, [SettingsLayer("test", {k.replace("__", "."): v for k, v in settings.items()})]
    )


def _weights(plan: Plan, checkpoint: Checkpoint, dtype: str) -> dict[str, int]:
    loaded = load_stages(plan, checkpoint, MetaDevice(), dtype=dtype, load_format="dummy")
    return {name: stage.footprint.weights for name, stage in loaded.items()}


def test_a_stage_is_loaded_in_its_own_dtype_and_the_others_in_the_engines(checkpoint: Checkpoint) -> None:
    half, full = (_weights(_plan(checkpoint), checkpoint, dtype) for dtype in ("bfloat16", "float32"))
    mixed = _weights(_plan(checkpoint, code2wav__dtype="float32"), checkpoint, "bfloat16")
    assert mixed == half | {"code2wav": full["code2wav"]}
    assert half["code2wav"] < full["code2wav"]


def _dtype_of(settings: tuple[Setting, ...], stage: str) -> tuple[object, str]:
    return next((setting.value, setting.origin) for setting in settings if setting.path == f"{stage}.dtype")


def test_users_go_over_the_family(checkpoint: Checkpoint) -> None:
    plan = _plan(checkpoint)
    stages = tuple(
        msgspec.structs.replace(stage, dtype="float32") if stage.name == "code2wav" else stage
        for stage in plan.pipeline.stages
    )
    pipeline = msgspec.structs.replace(plan.pipeline, stages=stages)
    for given, expected in (({}, ("float32", FAMILY)), ({"code2wav.dtype": "none"}, (None, "test"))):
        configured, settings = configure(pipeline, [SettingsLayer("test", given)])
        assert configured.stage("code2wav").dtype == expected[0]
        assert _dtype_of(settings, "code2wav") == expected
        assert _dtype_of(settings, "talker") == (None, DEFAULT)
        assert [stage.options for stage in configured.stages] == [stage.options for stage in stages]
        assert [type(stage.options) for stage in configured.stages] == [type(stage.options) for stage in stages]


def test_a_table_of_a_file_may_set_the_dtype(checkpoint: Checkpoint, tmp_path: Path) -> None:
    table = SettingsLayer("omni.toml", {"code2wav": {"dtype": "float16", "chunk_frames": 7}}, file=True)
    configured, _ = configure(_plan(checkpoint).pipeline, [table])
    stage = configured.stage("code2wav")
    assert (stage.dtype, msgspec.structs.asdict(stage.options)["chunk_frames"]) == ("float16", 7)


def test_options_are_checked_as_ever(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match=r"code2wav.chunk_frames: chunk_frames must be at least 1"):
        _plan(checkpoint, code2wav__chunk_frames=0)


@pytest.mark.parametrize(("value", "words"), [("float8", "is not supported; use one of float32"), (3, "does not fit")])
def test_an_unknown_dtype_is_refused(checkpoint: Checkpoint, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=r"code2wav\.dtype: .*" + words):
        _plan(checkpoint, code2wav__dtype=value)
