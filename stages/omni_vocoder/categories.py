"""What the phases of a vocoder are for: how a timeline groups them."""

from omni.device import PhaseCategory

CATEGORIES = {
    "set_null_rows": PhaseCategory.PREPROCESS,
    "reset_rows": PhaseCategory.PREPROCESS,
    "decode_frames": PhaseCategory.FORWARD,
}
