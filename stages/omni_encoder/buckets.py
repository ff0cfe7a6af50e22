"""What the phases of an encoder are for: how a timeline groups them."""

from omni.device import Bucket

BUCKETS = {
    "copy_features": Bucket.COPIES,
    "clear_rest": Bucket.PREPROCESS,
    "encode_batch": Bucket.FORWARD,
    "take_outputs": Bucket.POSTPROCESS,
}
