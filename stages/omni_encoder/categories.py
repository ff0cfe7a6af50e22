"""Phase categories of an encoder stage, by which a timeline groups phases."""

from omni.device import PhaseCategory

CATEGORIES = {
    "copy_features": PhaseCategory.COPIES,
    "clear_rest": PhaseCategory.PREPROCESS,
    "encode_batch": PhaseCategory.FORWARD,
    "take_outputs": PhaseCategory.POSTPROCESS,
}
