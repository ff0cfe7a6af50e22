"""Phase categories of an autoregressive stage, by which a timeline groups phases."""

from omni.device import PhaseCategory

HAND_OVER = "hand_tokens_over"
"""The category of `Device.moment` for the moment at which a step's tokens are complete."""

CATEGORIES = {
    "start_rows": PhaseCategory.PREPROCESS,
    "extend_tables": PhaseCategory.PREPROCESS,
    "prepare_decodes": PhaseCategory.PREPROCESS,
    "place_chunks": PhaseCategory.PREPROCESS,
    "restore_frames": PhaseCategory.PREPROCESS,
    "set_null_rows": PhaseCategory.PREPROCESS,
    "set_counter": PhaseCategory.PREPROCESS,
    "embed_inputs": PhaseCategory.PREPROCESS,
    "place_payload": PhaseCategory.PREPROCESS,
    "run_forward": PhaseCategory.FORWARD,
    "keep_hidden": PhaseCategory.FORWARD,
    "compute_logits": PhaseCategory.LOGITS,
    "sample_rows": PhaseCategory.SAMPLE,
    "accept_tokens": PhaseCategory.SAMPLE,
    HAND_OVER: PhaseCategory.TOKEN_POINT,
    "predict_codes": PhaseCategory.CODES,
    "post_update": PhaseCategory.POSTPROCESS,
    "score_tokens": PhaseCategory.SCORES,
    "score_prompt": PhaseCategory.SCORES,
    "copy_scores": PhaseCategory.SCORES,
}
