"""Phase categories of a vocoder stage, by which a timeline groups phases."""

from omni.device import PhaseCategory

CATEGORIES = {
    "set_null_rows": PhaseCategory.PREPROCESS,
    "reset_rows": PhaseCategory.PREPROCESS,
    "decode_frames": PhaseCategory.FORWARD,
}
