"""Builds the model that a stage names, the first step of every stage kind."""

from collections.abc import Callable
from typing import TypeVar, cast

from omni.errors import ConfigError
from omni.plugin import locate
from omni.stage.base import StageContext
from omni.stage.memory_errors import memory_errors

ModelT = TypeVar("ModelT")


def build_model(context: StageContext, expected: type[ModelT]) -> ModelT:
    """Calls the function `Stage.model`: `(StageContext) -> model`, on the context's device, weights loaded.

    Raises ConfigError if the result is not an `expected` or does not fit the device. Propagates the function's errors.
    """
    stage = context.stage
    field = f"pipeline.stages.{stage.name}.model"
    build = cast(Callable[[StageContext], object], locate(stage.model, field))
    with memory_errors(stage.name, "the weights", context.device):
        model = build(context)
    if not isinstance(model, expected):
        wanted = f"{expected.__module__}.{expected.__name__}"
        raise ConfigError(field, f"gave a {type(model).__name__}", f"kind {stage.kind!r} takes an {wanted}")
    return model
