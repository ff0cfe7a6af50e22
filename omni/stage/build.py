"""What every stage kind does first: build the model that its stage names."""

from collections.abc import Callable
from typing import TypeVar, cast

from omni.errors import ConfigError
from omni.plugin import locate
from omni.stage.base import StageContext
from omni.stage.memory_errors import memory_errors

ModelT = TypeVar("ModelT")


def build_model(context: StageContext, expected: type[ModelT]) -> ModelT:
    """Calls the function that `Stage.model` names: `(StageContext) -> model`, on the context's device, weights loaded.

    Raises ConfigError if what it gives is no `expected` or does not fit the device, and what the function raises.
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
