"""Settings laid over the engine's own options and over a pipeline's."""

from collections.abc import Sequence
from typing import cast

import msgspec
import torch

from omni.config import Layer, Setting, overlay
from omni.engine.options import EngineOptions
from omni.pipeline import ENGINE, Pipeline


def engine_options(layers: Sequence[Layer]) -> tuple[EngineOptions, tuple[Setting, ...]]:
    """What layers set below `engine`, and the origins. Raises ConfigError."""
    options, settings = overlay({ENGINE: EngineOptions()}, [layer.only(ENGINE) for layer in layers])
    return cast(EngineOptions, options[ENGINE]), settings


def configure(pipeline: Pipeline, layers: Sequence[Layer]) -> tuple[Pipeline, tuple[Setting, ...]]:
    """The pipeline with its stages' options set by layers, and the origins. Raises ConfigError."""
    before = {stage.name: stage.options for stage in pipeline.stages}
    options, settings = overlay(before, [layer.without(ENGINE) for layer in layers], others=(ENGINE,))
    stages = tuple(msgspec.structs.replace(stage, options=options[stage.name]) for stage in pipeline.stages)
    return msgspec.structs.replace(pipeline, stages=stages), settings


def dtype_for(options: EngineOptions, device: torch.device) -> str:
    """The dtype that the options name, or else the one that suits the device."""
    return options.dtype or ("float32" if device.type == "cpu" else "bfloat16")
