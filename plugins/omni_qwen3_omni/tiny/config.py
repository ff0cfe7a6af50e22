"""config.json of a tiny checkpoint, with the names that the published file has."""

from typing import Any

from omni.tiny import decoder_settings
from omni_qwen3_omni.tiny.shape import TinyShape
from omni_qwen3_omni.tiny.tokenizer import TOKENS

# Number of the talker's last ids, of which only the end id is generated, at published offsets.
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
_INTERLEAVED = {"mrope_interleaved": True, "interleaved": True}
_SPATIAL = 20
PATCH = 16

Json = dict[str, Any]


def model_config(shape: TinyShape, ids: dict[str, int], vocab_size: int) -> Json:
    """ids: of the tokenizer's tokens."""
    media = TOKENS.media_ids(ids, "_token_id") | {"position_id_per_seconds": 13, "seconds_per_chunk": 2}
    config: Json = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "float32",
        "enable_audio_output": shape.talker,
        **{f"{name}_token_id": ids[f"<|{name}|>"] for name in ("im_start", "im_end")},
        **{f"{name}_token_id": ids[name] for name in ("system", "user", "assistant")},
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "thinker_config": _thinker(shape, vocab_size) | media | {"user_token_id": ids["user"]},
    }
    if shape.talker:
        config |= {"talker_config": _talker(shape) | media, "code2wav_config": _code2wav(shape)}
    return config


def _thinker(shape: TinyShape, vocab_size: int) -> Json:
    text = shape.text_settings(shape.head_dim, _SPATIAL) | {
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.expert_size,
    }
    vision = shape.vision_settings() | {
        "deepstack_visual_indexes": list(shape.deepstack),
        "num_position_embeddings": 64,
        "patch_size": PATCH,
    }
    audio = shape.audio_settings() | {"downsample_hidden_size": 16}
    text["rope_scaling"] |= _INTERLEAVED
    return {"text_config": text, "audio_config": audio, "vision_config": vision}


def _talker(shape: TinyShape) -> Json:
    size, predictor = shape.codebook_size, (shape.predictor_layers, shape.predictor_heads, shape.predictor_kv_heads)
    text = shape.talker_settings(_SPATIAL) | {
        "vocab_size": size + _CODEC_SPECIALS,
        "num_experts": shape.talker_experts,
        "num_experts_per_tok": shape.talker_top_k,
        "moe_intermediate_size": shape.talker_expert_size,
        "shared_expert_intermediate_size": shape.shared_expert_size,
        "norm_topk_prob": True,
    }
    text["rope_scaling"] |= _INTERLEAVED
    return {
        "text_config": text,
        "code_predictor_config": {
            "vocab_size": size,
            "num_code_groups": shape.groups,
            **decoder_settings(*predictor, shape.talker_head_dim, shape.talker_hidden_size, shape.max_positions),
        },
        "num_code_groups": shape.groups,
        "thinker_hidden_size": shape.hidden_size,
        "accept_hidden_layer": shape.accept_hidden_layer,
        "spatial_merge_size": 2,
        "speaker_id": {voice: size + _FIRST_VOICE + i for i, voice in enumerate(shape.voices)},
        **{field: size + offset for field, offset in _CODEC_OFFSETS.items()},
    }


def _code2wav(shape: TinyShape) -> Json:
    return {
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
