"""The sizes of a tiny checkpoint, and its config.json."""

from typing import Any

from omni.tiny import SpeakingShape
from omni_qwen2_5_omni.tiny.tokenizer import TOKENS

_SPATIAL = 24


class TinyShape(SpeakingShape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """codes: number of codes with sound. block_size: mel frames of a block."""

    talker_hidden_size: int = 40
    codes: int = 40
    voices: tuple[str, ...] = ("Chelsie", "Ethan")
    dit_layers: int = 3
    look_ahead_layers: tuple[int, ...] = (1,)
    look_backward_layers: tuple[int, ...] = (0, 2)
    block_size: int = 8
    upsample_rates: tuple[int, ...] = (5, 4)


def model_config(shape: TinyShape, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """ids: of the special tokens. vocab_size: the last ids have no token, and some of them mark the talker's text."""
    media = TOKENS.media_ids(ids, "_token_index")
    width = shape.hidden_size
    vision = shape.vision_settings() | {"fullatt_block_indexes": [shape.vision_layers - 1]}
    thinker = {
        "text_config": shape.text_settings(width // shape.heads, _SPATIAL)
        | {"vocab_size": vocab_size, "tie_word_embeddings": False},
        "audio_config": shape.audio_settings(),
        "vision_config": vision,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        **media,
    }
    talker = {
        **shape.talker_settings(_SPATIAL),
        "embedding_size": width,
        "vocab_size": shape.codes + 5,
        "tts_codec_pad_token_id": shape.codes,
        "tts_codec_start_token_id": shape.codes + 1,
        "tts_codec_end_token_id": shape.codes + 2,
        "tts_codec_mask_token_id": shape.codes + 4,
        **{f"tts_text_{name}_token_id": vocab_size - 8 + i for i, name in enumerate(("start", "end", "pad"))},
        **media,
    }
    dit = {
        "hidden_size": 32,
        "num_hidden_layers": shape.dit_layers,
        "num_attention_heads": 2,
        "head_dim": 16,
        "emb_dim": 16,
        "block_size": shape.block_size,
        "look_ahead_layers": list(shape.look_ahead_layers),
        "look_backward_layers": list(shape.look_backward_layers),
        "num_embeds": shape.codes,
        "mel_dim": 8,
        "enc_emb_dim": 12,
        "enc_dim": 8,
        "enc_channels": [8, 8, 8, 16],
        "enc_kernel_sizes": [5, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 1],
        "enc_attention_channels": 4,
        "enc_se_channels": 4,
    }
    kernels = [2 * rate + rate % 2 for rate in shape.upsample_rates]
    bigvgan = {"mel_dim": 8, "upsample_initial_channel": 16, "upsample_kernel_sizes": kernels}
    bigvgan |= {"resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3, 5]] * 2}
    return {
        "enable_audio_output": shape.talker,
        "thinker_config": thinker,
        "talker_config": talker,
        "token2wav_config": {
            "dit_config": dit,
            "bigvgan_config": bigvgan | {"upsample_rates": list(shape.upsample_rates)},
        },
    }
