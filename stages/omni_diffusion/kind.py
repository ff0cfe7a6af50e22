"""Stage kind `"diffusion"`."""

from omni.device import declare_categories
from omni.stage import StageContext, build_model
from omni_diffusion.categories import CATEGORIES
from omni_diffusion.loaded import LoadedDiffusion
from omni_diffusion.model import DiffusionModel
from omni_diffusion.options import DiffusionOptions

declare_categories(CATEGORIES)


class DiffusionStageKind:
    """Codes in, streaming waveform out, by iterative denoising.

    `Stage.model` names a function `(StageContext) -> DiffusionModel` that builds the model on the device, weights loaded, with
    `num_steps` and `guidance` of the context's options where they are set.
    """

    name = "diffusion"
    options = DiffusionOptions

    def load(self, context: StageContext) -> LoadedDiffusion:
        return LoadedDiffusion(context, build_model(context, DiffusionModel))  # type: ignore[type-abstract]
