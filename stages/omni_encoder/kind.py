"""Stage kind `"encoder"`."""

from collections.abc import Callable
from typing import cast

from omni.errors import ConfigError
from omni.plugin import locate
from omni.stage import StageContext
from omni_encoder.model import EncoderModel
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker


class EncoderStageKind:
    """Towers that turn media into embeddings: batched, each content encoded once.

    `Stage.model` names a function `(StageContext) -> EncoderModel` that builds the model on the device, weights loaded.
    """

    name = "encoder"
    options = EncoderOptions

    def build(self, context: StageContext) -> EncoderWorker:
        stage = context.stage
        assert isinstance(context.options, EncoderOptions)
        field = f"pipeline.stages.{stage.name}.model"
        model = cast(Callable[[StageContext], object], locate(stage.model, field))(context)
        if not isinstance(model, EncoderModel):
            raise ConfigError(field, f"gave a {type(model).__name__}", "return an omni_encoder.model.EncoderModel")
        return EncoderWorker(stage.name, context.device, model, context.options, stage.priority)
