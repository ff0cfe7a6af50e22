"""Stage kind `"encoder"`."""

from omni.device import declare_categories
from omni.stage import StageContext, build_model
from omni_encoder.categories import CATEGORIES
from omni_encoder.loaded import LoadedEncoder
from omni_encoder.model import EncoderModel
from omni_encoder.options import EncoderOptions

declare_categories(CATEGORIES)


class EncoderStageKind:
    """Towers that encode media as embeddings, in batches, each content once.

    `Stage.model` names a function `(StageContext) -> EncoderModel` that builds the model on the device, weights loaded.
    """

    name = "encoder"
    options = EncoderOptions

    def load(self, context: StageContext) -> LoadedEncoder:
        return LoadedEncoder(context, build_model(context, EncoderModel))  # type: ignore[type-abstract]
