"""What the stages need of a checkpoint's config.json, in typed form. transformers parses the file and fills its defaults."""

import math
from typing import Any

import msgspec
from transformers import CsmConfig as HfConfig

from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import Section
from omni.checkpoint.hf_config import parse_config
from omni_ar.layers import DecoderConfig, decoder_config
from omni_vocoder.layers import WindowShape, window_shape

SAMPLE_RATE = 24000
PER_FRAME = 2
"""Positions of a codec frame in the codec's transformers."""


class CsmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole checkpoint.

    vocab_size: codes of a code group, those of no codebook included. audio_token, audio_eos: text ids that stand for a frame, and
    for the frame that ends a sound: `codec_eos` in every group. mimi: transformers' `MimiConfig`. mimi_window: of its transformers.
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
    mimi_window: WindowShape


@once_per_config
def read_config(raw: dict[str, Any]) -> CsmConfig:
    """Raises CheckpointError if config.json does not describe a CSM that is served here."""
    hf = parse_config(HfConfig, raw, "CSM")
    depth, mimi = hf.depth_decoder_config, hf.codec_config
    codec = Section(mimi.to_dict() | {"frame_rate": mimi.frame_rate}, "codec_config")
    _check(Section(hf.to_dict()), codec)
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
        mimi_window=window_shape(codec, PER_FRAME),
    )


def _check(own: Section, codec: Section) -> None:
    """What the modules are built on. codec: values that transformers works out are in it, too."""
    own.require_equal({"mlp_bias": False})
    own.require_index(own["text_vocab_size"], "audio_token_id", "audio_eos_token_id")
    own.require_index(own["vocab_size"], "codebook_eos_token_id")
    same = {"num_codebooks": "num_codebooks", "vocab_size": "vocab_size", "backbone_hidden_size": "hidden_size"}
    own.part("depth_decoder_config").require_equal({"mlp_bias": False} | {ours: own[its] for ours, its in same.items()})
    # Each looks back a power farther than the one before it.
    codec.require_at_most(16, "num_residual_layers")
    codec.require_equal(
        {
            "model_type": "mimi",
            "num_quantizers": own["num_codebooks"],
            "use_causal_conv": True,
            "trim_right_ratio": 1.0,
            "pad_mode": "constant",
            "audio_channels": 1,
            "hidden_act": "gelu",
            "sampling_rate": SAMPLE_RATE,
            "frame_rate": SAMPLE_RATE / (PER_FRAME * math.prod(codec["upsampling_ratios"])),
        }
    )
