"""Writes a folder shaped like the released Qwen2.5-Omni-3B or -7B, without weights: for `load_format="dummy"`.

Sizes are those of the published config.json files; token2wav and most of the towers are as transformers has them by default. The
tokenizer is the tiny checkpoint's, so prompts are longer than published ones and text is gibberish, which speed does not notice.
Its two voices are of the published shape, and noise.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import Qwen2_5OmniConfig

from omni.utils.quiet import quiet
from omni_qwen2_5_omni.tiny import write_tiny

_VOICES = {"Chelsie": 151_872, "Ethan": 151_873}
_VOICE_FRAMES = 300
"""Mel frames of a voice's reference, of a hundred a second: about as many as the published ones have."""
_MEDIA_TOKENS = ("audio_token_index", "image_token_index", "video_token_index", "eos_token_id", "pad_token_id")


class HeardShape(msgspec.Struct, frozen=True, kw_only=True):
    """thinker: of its text model. talker_mrope: how many of the talker's frequencies each axis turns."""

    thinker: dict[str, int]
    talker: dict[str, int]
    talker_mrope: tuple[int, int, int]


QWEN2_5_OMNI_3B = HeardShape(
    thinker={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
    talker={
        "vocab_size": 8448,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    talker_mrope=(16, 16, 0),
)
QWEN2_5_OMNI_7B = HeardShape(
    thinker={
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    talker={
        "vocab_size": 8448,
        "hidden_size": 896,
        "intermediate_size": 18_944,
        "num_hidden_layers": 24,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 128,
    },
    talker_mrope=(16, 24, 24),
)


def write_heard_shape(directory: Path, shape: HeardShape) -> None:
    """config.json with the shape's sizes, voices, tokenizer and processor files; no weights."""
    write_tiny_heard(directory)
    path = directory / "config.json"
    tiny = json.loads(path.read_text())["thinker_config"]
    width = shape.thinker["hidden_size"]
    with quiet():
        config = Qwen2_5OmniConfig(
            thinker_config={
                "text_config": shape.thinker | _rope((16, 24, 24)) | {"tie_word_embeddings": False},
                "audio_config": {"output_dim": width},
                "vision_config": {"hidden_size": 1280, "out_hidden_size": width},
                **{name: tiny[name] for name in _MEDIA_TOKENS},
            },
            talker_config=shape.talker | _rope(shape.talker_mrope) | {"embedding_size": width},
            dtype="bfloat16",
        )
        token2wav: Any = config.token2wav_config
        dit = token2wav.dit_config
        path.write_text(json.dumps(config.to_dict(), indent=1))
    generator = torch.Generator().manual_seed(0)
    voices = {
        name: {
            "bos_token": token,
            "cond": torch.randn((1, dit.enc_emb_dim), generator=generator),
            "ref_mel": torch.randn((1, _VOICE_FRAMES, dit.mel_dim), generator=generator),
        }
        for name, token in _VOICES.items()
    }
    torch.save(voices, directory / "spk_dict.pt")


def write_tiny_heard(directory: Path) -> None:
    """The tiny Qwen2.5-Omni, without its weights."""
    write_tiny(directory)
    for file in directory.glob("*.safetensors*"):
        file.unlink()


def _rope(section: tuple[int, int, int]) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(section)}}
