"""Stage kind `"ar"`."""

from omni.stage import StageContext, build_model
from omni_ar.attention import TorchPagedAttention
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.runner import Runner
from omni_ar.run.worker import ArWorker


class ArStageKind:
    """Autoregressive stages: continuous batching over paged KV.

    `Stage.model` names a function `(StageContext) -> ArModel` that builds the model on the device, weights loaded.
    """

    name = "ar"
    options = ArOptions

    def build(self, context: StageContext) -> ArWorker:
        stage = context.stage
        assert isinstance(context.options, ArOptions)
        model = build_model(context, ArModel)  # type: ignore[type-abstract]
        limits = Limits.of(stage.name, context.options, model.shape)
        runner = Runner(stage.name, context.device, model, TorchPagedAttention(), limits, context.dtype, stage.priority)
        return ArWorker(stage.name, runner, model.shape, limits, context.options)
