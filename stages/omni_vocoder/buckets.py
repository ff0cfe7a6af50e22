"""What the phases of a vocoder are for: how a timeline groups them."""

from omni.device import Bucket

BUCKETS = {
    "set_null_rows": Bucket.PREPROCESS,
    "reset_rows": Bucket.PREPROCESS,
    "decode_frames": Bucket.FORWARD,
}
