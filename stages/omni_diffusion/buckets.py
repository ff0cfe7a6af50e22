"""What the phases of a diffusion stage are for: how a timeline groups them."""

from omni.device import Bucket

BUCKETS = {
    "begin_windows": Bucket.PREPROCESS,
    "set_null_windows": Bucket.PREPROCESS,
    "set_null_steps": Bucket.PREPROCESS,
    "set_null_piece": Bucket.PREPROCESS,
    "denoise_rows": Bucket.FORWARD,
    "render_piece": Bucket.POSTPROCESS,
}
