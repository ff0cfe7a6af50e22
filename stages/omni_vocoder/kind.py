"""Stage kind `"vocoder"`."""

from omni.device import declare_categories
from omni.stage import StageContext, build_model
from omni_vocoder.categories import CATEGORIES
from omni_vocoder.loaded import LoadedVocoder
from omni_vocoder.model import VocoderModel
from omni_vocoder.options import VocoderOptions

declare_categories(CATEGORIES)


class VocoderStageKind:
    """Codes in, streaming waveform out.

    `Stage.model` names a function `(StageContext) -> VocoderModel` that builds the model on the device, weights loaded.
    """

    name = "vocoder"
    options = VocoderOptions

    def load(self, context: StageContext) -> LoadedVocoder:
        return LoadedVocoder(context, build_model(context, VocoderModel))  # type: ignore[type-abstract]
