"""config.json and its companions for a tiny checkpoint, with the fields that the published files have."""

from collections.abc import Mapping
from typing import Any

from omni_qwen3_omni.tiny.shape import TinyShape

# The talker never says its last ids but one; the published offsets into them.
_CODEC_SPECIALS = 1024
_CODEC_OFFSETS = {
    "codec_pad_id": 100,
    "codec_bos_id": 101,
    "codec_eos_token_id": 102,
    "codec_nothink_id": 107,
    "codec_think_bos_id": 108,
    "codec_think_eos_id": 109,
}
_FIRST_VOICE = 253
_SPATIAL_MERGE = 2
_PATCH = 16

Json = dict[str, Any]


def model_config(shape: TinyShape, token_ids: Mapping[str, int], vocab_size: int) -> Json:
    """config.json. token_ids: of the special tokens and of the words `system`, `user`, `assistant`."""
    config: Json = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "float32",
        "enable_audio_output": shape.talker,
        "im_start_token_id": token_ids["<|im_start|>"],
        "im_end_token_id": token_ids["<|im_end|>"],
        "tts_pad_token_id": token_ids["<tts_pad>"],
        "tts_bos_token_id": token_ids["<tts_text_bos>"],
        "tts_eos_token_id": token_ids["<tts_text_eod>"],
        "system_token_id": token_ids["system"],
        "user_token_id": token_ids["user"],
        "assistant_token_id": token_ids["assistant"],
        "thinker_config": _thinker(shape, token_ids, vocab_size),
    }
    if shape.talker:
        config |= {"talker_config": _talker(shape, token_ids), "code2wav_config": _code2wav(shape)}
    return config


def generation_config(token_ids: Mapping[str, int]) -> Json:
    return {
        "eos_token_id": [token_ids["<|im_end|>"], token_ids["<|endoftext|>"]],
        "pad_token_id": token_ids["<|endoftext|>"],
    }


def preprocessor_config() -> Json:
    """Pictures become 1 to 64 tokens: smaller than the published limits, so that a tiny model stays quick."""
    side = _PATCH * _SPATIAL_MERGE
    smallest, largest = side * side, 64 * side * side
    return {
        "processor_class": "Qwen3OmniMoeProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 300,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "dither": 0.0,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "patch_size": _PATCH,
        "temporal_patch_size": 2,
        "merge_size": _SPATIAL_MERGE,
        "min_pixels": smallest,
        "max_pixels": largest,
        "size": {"shortest_edge": smallest, "longest_edge": largest},
    }


def _media_ids(token_ids: Mapping[str, int]) -> Json:
    return {
        "audio_token_id": token_ids["<|audio_pad|>"],
        "image_token_id": token_ids["<|image_pad|>"],
        "video_token_id": token_ids["<|video_pad|>"],
        "audio_start_token_id": token_ids["<|audio_start|>"],
        "audio_end_token_id": token_ids["<|audio_end|>"],
        "vision_start_token_id": token_ids["<|vision_start|>"],
        "vision_end_token_id": token_ids["<|vision_end|>"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }


def _backbone(layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int, shape: TinyShape) -> Json:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": 10000,
    }


def _sparse(experts: int, top_k: int, expert_size: int, shared_expert_size: int) -> Json:
    return {
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": expert_size,
        "shared_expert_intermediate_size": shared_expert_size,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _mrope(head_dim: int) -> Json:
    """A head's frequencies over time, height and width, in the published proportion of 24 : 20 : 20."""
    half = head_dim // 2
    spatial = half * 20 // 64
    section = [half - 2 * spatial, spatial, spatial]
    return {"rope_type": "default", "mrope_section": section, "mrope_interleaved": True, "interleaved": True}


def _thinker(shape: TinyShape, token_ids: Mapping[str, int], vocab_size: int) -> Json:
    text = {
        "model_type": "qwen3_omni_moe_text",
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "rope_scaling": _mrope(shape.head_dim),
        **_backbone(shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.hidden_size, shape),
        **_sparse(shape.experts, shape.top_k, shape.expert_size, 0),
    }
    audio = {
        "model_type": "qwen3_omni_moe_audio_encoder",
        "num_mel_bins": 128,
        "encoder_layers": shape.audio_layers,
        "encoder_attention_heads": shape.audio_heads,
        "encoder_ffn_dim": 2 * shape.audio_hidden_size,
        "d_model": shape.audio_hidden_size,
        "output_dim": shape.hidden_size,
        "downsample_hidden_size": 16,
        "n_window": 50,
        "n_window_infer": 800,
        "conv_chunksize": 500,
        "max_source_positions": 1500,
    }
    vision = {
        "model_type": "qwen3_omni_moe_vision_encoder",
        "depth": shape.vision_layers,
        "num_heads": shape.vision_heads,
        "hidden_size": shape.vision_hidden_size,
        "intermediate_size": 2 * shape.vision_hidden_size,
        "out_hidden_size": shape.hidden_size,
        "deepstack_visual_indexes": list(shape.deepstack),
        "num_position_embeddings": 64,
        "in_channels": 3,
        "patch_size": _PATCH,
        "spatial_merge_size": _SPATIAL_MERGE,
        "temporal_patch_size": 2,
        "hidden_act": "gelu_pytorch_tanh",
    }
    return {
        "model_type": "qwen3_omni_moe_thinker",
        "text_config": text,
        "audio_config": audio,
        "vision_config": vision,
        "user_token_id": token_ids["user"],
        **_media_ids(token_ids),
    }


def _talker(shape: TinyShape, token_ids: Mapping[str, int]) -> Json:
    width, head_dim = shape.talker_hidden_size, shape.talker_head_dim
    heads, kv_heads = shape.predictor_heads, shape.predictor_kv_heads
    text = {
        "model_type": "qwen3_omni_moe_talker_text",
        "vocab_size": shape.codebook_size + _CODEC_SPECIALS,
        "rope_scaling": _mrope(head_dim),
        **_backbone(shape.talker_layers, shape.talker_heads, shape.talker_kv_heads, head_dim, width, shape),
        **_sparse(shape.talker_experts, shape.talker_top_k, shape.talker_expert_size, shape.shared_expert_size),
    }
    predictor = {
        "model_type": "qwen3_omni_moe_talker_code_predictor",
        "vocab_size": shape.codebook_size,
        "num_code_groups": shape.groups,
        **_backbone(shape.predictor_layers, heads, kv_heads, head_dim, width, shape),
    }
    return {
        "model_type": "qwen3_omni_moe_talker",
        "text_config": text,
        "code_predictor_config": predictor,
        "num_code_groups": shape.groups,
        "thinker_hidden_size": shape.hidden_size,
        "accept_hidden_layer": shape.accept_hidden_layer,
        "spatial_merge_size": _SPATIAL_MERGE,
        "speaker_id": {v: shape.codebook_size + _FIRST_VOICE + i for i, v in enumerate(shape.voices)},
        **{field: shape.codebook_size + offset for field, offset in _CODEC_OFFSETS.items()},
        **_media_ids(token_ids),
    }


def _code2wav(shape: TinyShape) -> Json:
    return {
        "model_type": "qwen3_omni_moe_code2wav",
        "codebook_size": shape.codebook_size,
        "num_quantizers": shape.groups,
        "num_hidden_layers": shape.vocoder_layers,
        "num_attention_heads": shape.vocoder_heads,
        "num_key_value_heads": shape.vocoder_kv_heads,
        "hidden_size": shape.vocoder_hidden_size,
        "intermediate_size": 2 * shape.vocoder_hidden_size,
        "sliding_window": shape.vocoder_window,
        "decoder_dim": shape.decoder_size,
        "upsample_rates": list(shape.upsample_rates),
        "upsampling_ratios": list(shape.upsampling_ratios),
    }
