"""Settings applied to the engine's options and to a pipeline's."""

from collections.abc import Sequence
from typing import cast

import msgspec
import torch

from omni.config import Layer, Setting, overlay
from omni.engine.options import EngineOptions
from omni.pipeline import ENGINE, FRONTEND, Pipeline, Stage

_DTYPE = "dtype"


def engine_options(layers: Sequence[Layer]) -> tuple[EngineOptions, tuple[Setting, ...]]:
    """The engine's options from layers, and the origin of each. Raises ConfigError."""
    options, settings = overlay({ENGINE: EngineOptions()}, [layer.only(ENGINE) for layer in layers])
    return cast(EngineOptions, options[ENGINE]), settings


def configure(pipeline: Pipeline, layers: Sequence[Layer]) -> tuple[Pipeline, tuple[Setting, ...]]:
    """The pipeline with its stages' options and dtypes from layers, and the origin of each. Raises ConfigError."""
    before = {stage.name: _settable(stage) for stage in pipeline.stages}
    others = (ENGINE, FRONTEND)
    after, settings = overlay(before, [layer.without(*others) for layer in layers], others)
    stages = tuple(_with_settings(stage, after[stage.name]) for stage in pipeline.stages)
    return msgspec.structs.replace(pipeline, stages=stages), settings


def _settable(stage: Stage) -> msgspec.Struct:
    """The stage's options and, in a struct derived from theirs, its dtype."""
    options = type(stage.options)
    if _DTYPE in options.__struct_fields__:
        return stage.options
    field = (_DTYPE, str | None, None)
    derived = msgspec.defstruct(options.__name__, [field], bases=(options,), module=__name__, frozen=True, kw_only=True)
    return derived(**msgspec.structs.asdict(stage.options), dtype=stage.dtype)


def _with_settings(stage: Stage, settings: msgspec.Struct) -> Stage:
    options = type(stage.options)
    if type(settings) is options:
        return msgspec.structs.replace(stage, options=settings)
    fields = msgspec.structs.asdict(settings)
    dtype = fields.pop(_DTYPE)
    return msgspec.structs.replace(stage, options=options(**fields), dtype=dtype)


def dtype_for(options: EngineOptions, device: torch.device) -> str:
    """The dtype of the options, by default the one for the device."""
    return options.dtype or ("float32" if device.type == "cpu" else "bfloat16")
