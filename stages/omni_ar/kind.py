"""Stage kind `"ar"`."""

from omni.device import declare_categories
from omni.stage import StageContext, build_model
from omni_ar.loaded import LoadedAr
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.run.phases import CATEGORIES

declare_categories(CATEGORIES)


class ArStageKind:
    """Autoregressive stages: continuous batching over paged KV.

    `Stage.model` names a function `(StageContext) -> ArModel` that builds the model on the device, weights loaded.
    """

    name = "ar"
    options = ArOptions

    def load(self, context: StageContext) -> LoadedAr:
        return LoadedAr(context, build_model(context, ArModel))  # type: ignore[type-abstract]
