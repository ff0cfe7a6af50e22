"""Stage kind `"ar"`."""

from collections.abc import Callable
from typing import cast

from omni.errors import ConfigError
from omni.plugin import locate
from omni.stage import StageContext
from omni_ar.attention import TorchPagedAttention
from omni_ar.limits import Limits
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.runner import Runner
from omni_ar.worker import ArWorker


class ArStageKind:
    """Autoregressive stages: continuous batching over paged KV.

    `Stage.model` names a function `(StageContext) -> ArModel` that builds the model on the device, weights loaded.
    """

    name = "ar"
    options = ArOptions

    def build(self, context: StageContext) -> ArWorker:
        stage = context.stage
        assert isinstance(context.options, ArOptions)
        field = f"pipeline.stages.{stage.name}.model"
        model = cast(Callable[[StageContext], object], locate(stage.model, field))(context)
        if not isinstance(model, ArModel):
            raise ConfigError(field, f"gave a {type(model).__name__}", "return an omni_ar.model.ArModel")
        limits = Limits.of(stage.name, context.options, model.shape)
        runner = Runner(context.device, model, TorchPagedAttention(), limits, context.dtype, stage.priority)
        return ArWorker(stage.name, runner, model.shape, limits, context.options)
