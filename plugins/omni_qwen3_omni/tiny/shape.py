"""The sizes of a tiny checkpoint."""

from omni.tiny import SpeakingShape


class TinyShape(SpeakingShape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a tiny Qwen3-Omni.

    accept_hidden_layer: the thinker's hidden state that the talker sees. deepstack: vision blocks whose output is added
        to the thinker's first layers. max_shard_size: bytes of weights in a file, unless one weight alone is larger.
    """

    head_dim: int = 16
    experts: int = 4
    top_k: int = 2
    expert_size: int = 32
    accept_hidden_layer: int = 2
    deepstack: tuple[int, ...] = (0, 1)
    talker_experts: int = 4
    talker_top_k: int = 2
    talker_expert_size: int = 32
    shared_expert_size: int = 32
    voices: tuple[str, ...] = ("ethan", "chelsie", "aiden")
    groups: int = 4
    codebook_size: int = 64
    predictor_layers: int = 2
    predictor_heads: int = 3
    predictor_kv_heads: int = 1
    vocoder_layers: int = 2
    vocoder_heads: int = 2
    vocoder_kv_heads: int = 2
    vocoder_hidden_size: int = 32
    vocoder_window: int = 16
    decoder_size: int = 64
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    upsampling_ratios: tuple[int, ...] = (2, 2)
    max_shard_size: int = 2**20
