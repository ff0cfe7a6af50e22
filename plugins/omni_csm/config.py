"""What the stages need of a checkpoint's config.json, in typed form. transformers parses the file and fills its defaults."""

import math
from typing import Any

import msgspec
from transformers import CsmConfig as HfConfig

from omni.checkpoint.hf_config import once_per_config, parse_config
from omni.errors import CheckpointError
from omni_ar.layers import DecoderConfig, decoder_config

SAMPLE_RATE = 24000


class CsmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole checkpoint.

    vocab_size: codes of a code group, those of no codebook included. audio_token, audio_eos: text ids that stand for a frame, and
    for the frame that ends a sound: `codec_eos` in every group. mimi: transformers' `MimiConfig`.
    """

    backbone: DecoderConfig
    depth: DecoderConfig
    text_vocab_size: int
    vocab_size: int
    num_groups: int
    tied: bool
    audio_token: int
    audio_eos: int
    codec_eos: int
    mimi: Any


@once_per_config
def read_config(raw: dict[str, Any]) -> CsmConfig:
    """Raises CheckpointError if config.json does not describe a CSM that is served here."""
    hf = parse_config(HfConfig, raw, "CSM")
    depth, mimi = hf.depth_decoder_config, hf.codec_config
    _check(hf.to_dict(), depth.to_dict(), mimi.to_dict() | {"frame_rate": mimi.frame_rate})
    return CsmConfig(
        backbone=msgspec.structs.replace(decoder_config(hf), qk_norm=False),
        depth=msgspec.structs.replace(decoder_config(depth), qk_norm=False),
        text_vocab_size=hf.text_vocab_size,
        vocab_size=hf.vocab_size,
        num_groups=hf.num_codebooks,
        tied=bool(hf.tie_codebooks_embeddings),
        audio_token=hf.audio_token_id,
        audio_eos=hf.audio_eos_token_id,
        codec_eos=hf.codebook_eos_token_id,
        mimi=mimi,
    )


def _check(own: dict[str, Any], depth: dict[str, Any], codec: dict[str, Any]) -> None:
    """What the modules are built on."""
    same = {"num_codebooks": "num_codebooks", "vocab_size": "vocab_size", "backbone_hidden_size": "hidden_size"}
    wanted = {
        "model_type": "mimi",
        "num_quantizers": own["num_codebooks"],
        "use_causal_conv": True,
        "trim_right_ratio": 1.0,
        "pad_mode": "constant",
        "audio_channels": 1,
        "hidden_act": "gelu",
        "sampling_rate": SAMPLE_RATE,
        "frame_rate": SAMPLE_RATE / (2 * math.prod(codec["upsampling_ratios"])),
    }
    rope = {"rope_parameters": codec["rope_parameters"] | {"rope_type": "default"}}
    for part, values, right in (
        ("", own, {"mlp_bias": False}),
        ("depth_decoder_config.", depth, {"mlp_bias": False} | {ours: own[its] for ours, its in same.items()}),
        ("codec_config.", codec, wanted | rope),
    ):
        for name, value in right.items():
            _require(values[name] == value, f"{part}{name}", f"is {values[name]!r}, not {value!r}")
    ends = {
        "audio_token_id": "text_vocab_size",
        "audio_eos_token_id": "text_vocab_size",
        "codebook_eos_token_id": "vocab_size",
    }
    for name, size in ends.items():
        _require(own[name] in range(own[size]), name, f"{own[name]!r} is no id below {own[size]}")


def _require(holds: bool, field: str, problem: str) -> None:
    if not holds:
        raise CheckpointError(f"config.json: {field}", problem, "use a published CSM folder")
