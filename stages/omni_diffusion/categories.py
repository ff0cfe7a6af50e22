"""What the phases of a diffusion stage are for: how a timeline groups them."""

from omni.device import PhaseCategory

CATEGORIES = {
    "begin_windows": PhaseCategory.PREPROCESS,
    "set_null_windows": PhaseCategory.PREPROCESS,
    "set_null_steps": PhaseCategory.PREPROCESS,
    "set_null_piece": PhaseCategory.PREPROCESS,
    "denoise_rows": PhaseCategory.FORWARD,
    "render_piece": PhaseCategory.POSTPROCESS,
}
