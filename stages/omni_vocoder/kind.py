"""Stage kind `"vocoder"`."""

from omni.stage import StageContext, build_model
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
        model = build_model(context, VocoderModel)  # type: ignore[type-abstract]
        return VocoderWorker(stage.name, context.device, model, context.options, stage.priority)
