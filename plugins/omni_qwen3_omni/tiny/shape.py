"""The sizes of a tiny checkpoint."""

import msgspec


class TinyShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a tiny Qwen3-Omni.

    talker: False gives the layout of the Thinking model, which writes text only.
    accept_hidden_layer: the thinker's hidden state that the talker sees. deepstack: vision blocks whose output is added
        to the thinker's first layers.
    stop_gain, codec_stop_gain: how readily the thinker and the talker stop; 0 for never, 1 as any other token.
    max_shard_size: bytes of weights in a file, unless one weight alone is larger.
    """

    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden_size: int = 64
    experts: int = 4
    top_k: int = 2
    expert_size: int = 32
    max_positions: int = 4096
    accept_hidden_layer: int = 2
    stop_gain: float = 1.0

    vision_layers: int = 3
    vision_heads: int = 2
    vision_hidden_size: int = 32
    deepstack: tuple[int, ...] = (0, 1)
    audio_layers: int = 2
    audio_heads: int = 2
    audio_hidden_size: int = 32

    talker: bool = True
    talker_layers: int = 2
    talker_heads: int = 3
    talker_kv_heads: int = 1
    talker_head_dim: int = 16
    talker_hidden_size: int = 48
    talker_experts: int = 4
    talker_top_k: int = 2
    talker_expert_size: int = 32
    shared_expert_size: int = 32
    codec_stop_gain: float = 1.3
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
