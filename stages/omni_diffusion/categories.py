"""Phase categories of a diffusion stage, by which a timeline groups phases."""

from omni.device import PhaseCategory

CATEGORIES = {
    "begin_windows": PhaseCategory.PREPROCESS,
    "set_null_windows": PhaseCategory.PREPROCESS,
    "set_null_steps": PhaseCategory.PREPROCESS,
    "set_null_piece": PhaseCategory.PREPROCESS,
    "denoise_rows": PhaseCategory.FORWARD,
    "render_piece": PhaseCategory.POSTPROCESS,
}
