"""Stage kind `"encoder"`."""

from omni.stage import StageContext, build_model
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
        model = build_model(context, EncoderModel)  # type: ignore[type-abstract]
        return EncoderWorker(stage.name, context.device, model, context.options, stage.priority)
