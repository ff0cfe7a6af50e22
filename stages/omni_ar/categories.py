"""Phase categories of an autoregressive stage, by which a timeline groups phases."""

from omni.device import PhaseCategory

HAND_OVER = "hand_tokens_over"
"""The name of the token point, for `Device.moment`: the moment at which a step's tokens are complete."""

_PHASES = {
    PhaseCategory.PREPROCESS: (
        *("start_rows", "extend_tables", "prepare_decodes", "place_chunks", "restore_frames"),
        *("set_null_rows", "set_counter", "embed_inputs", "place_payload"),
    ),
    PhaseCategory.FORWARD: ("run_forward", "keep_hidden"),
    PhaseCategory.LOGITS: ("compute_logits",),
    PhaseCategory.SAMPLE: ("sample_rows", "accept_tokens"),
    PhaseCategory.TOKEN_POINT: (HAND_OVER,),
    PhaseCategory.CODES: ("predict_codes",),
    PhaseCategory.POSTPROCESS: ("post_update",),
    PhaseCategory.SCORES: ("score_tokens", "score_prompt", "copy_scores"),
}
CATEGORIES = {phase: category for category, phases in _PHASES.items() for phase in phases}
