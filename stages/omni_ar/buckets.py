"""What the phases of an autoregressive stage are for: how a timeline groups them."""

from omni.device import Bucket

HAND_OVER = "hand_tokens_over"
"""The moment at which a step's tokens are there: what `Device.moment` tells of it."""

BUCKETS = {
    "start_rows": Bucket.PREPROCESS,
    "extend_tables": Bucket.PREPROCESS,
    "prepare_decodes": Bucket.PREPROCESS,
    "place_chunks": Bucket.PREPROCESS,
    "restore_frames": Bucket.PREPROCESS,
    "set_null_rows": Bucket.PREPROCESS,
    "set_counter": Bucket.PREPROCESS,
    "embed_inputs": Bucket.PREPROCESS,
    "place_payload": Bucket.PREPROCESS,
    "run_forward": Bucket.FORWARD,
    "keep_hidden": Bucket.FORWARD,
    "compute_logits": Bucket.LOGITS,
    "sample_rows": Bucket.SAMPLE,
    "accept_tokens": Bucket.SAMPLE,
    HAND_OVER: Bucket.TOKEN_POINT,
    "predict_codes": Bucket.CODES,
    "post_update": Bucket.POSTPROCESS,
    "gather_segment": Bucket.PAYLOAD,
    "copy_segment": Bucket.PAYLOAD,
    "gather_step_rows": Bucket.PAYLOAD,
    "store_step_rows": Bucket.PAYLOAD,
    "copy_rows": Bucket.PAYLOAD,
    "score_tokens": Bucket.SCORES,
    "score_prompt": Bucket.SCORES,
    "copy_scores": Bucket.SCORES,
}
