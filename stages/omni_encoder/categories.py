"""What the phases of an encoder are for: how a timeline groups them."""

from omni.device import PhaseCategory

CATEGORIES = {
    "copy_features": PhaseCategory.COPIES,
    "clear_rest": PhaseCategory.PREPROCESS,
    "encode_batch": PhaseCategory.FORWARD,
    "take_outputs": PhaseCategory.POSTPROCESS,
}
