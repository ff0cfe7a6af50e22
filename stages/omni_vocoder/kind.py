"""Stage kind `"vocoder"`."""

from collections.abc import Callable
from typing import cast

from omni.errors import ConfigError
from omni.plugin import locate
from omni.stage import StageContext
from omni_vocoder.model import VocoderModel
from omni_vocoder.options import VocoderOptions
from omni_vocoder.worker import VocoderWorker


class VocoderStageKind:
    """Codes in, streaming waveform out.

    `Stage.model` names a function `(StageContext) -> VocoderModel` that builds the model on the device, weights loaded.
    """

    name = "vocoder"
    options = VocoderOptions

    def build(self, context: StageContext) -> VocoderWorker:
        stage = context.stage
        assert isinstance(context.options, VocoderOptions)
        field = f"pipeline.stages.{stage.name}.model"
        model = cast(Callable[[StageContext], object], locate(stage.model, field))(context)
        if not isinstance(model, VocoderModel):
            raise ConfigError(field, f"gave a {type(model).__name__}", "return an omni_vocoder.model.VocoderModel")
        return VocoderWorker(stage.name, context.device, model, context.options, stage.priority)
