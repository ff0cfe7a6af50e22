"""The fields of config.json that the stages use, typed. transformers parses the file and fills its defaults."""

import math
from typing import Any

import msgspec

from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import Section, check_rates
from omni.checkpoint.hf_config import config_class, parse_config
from omni_ar.layers import DecoderConfig, decoder_config
from omni_vocoder.layers import WindowShape, window_shape

SAMPLE_RATE = 24000
PER_FRAME = 2
"""Positions of a codec frame in the codec's transformers."""


class CsmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """vocab_size: codes of a code group, including those outside of the codebook. audio_token, audio_eos: text ids of a
    frame, and of the frame that ends a sound, which is `codec_eos` in every group. mimi: transformers' `MimiConfig`.
    mimi_window: window of the codec's transformers.
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
    """Raises CheckpointError if config.json does not describe a supported CSM."""
    hf = parse_config(config_class("CsmConfig"), raw, "CSM")
    depth, mimi = hf.depth_decoder_config, hf.codec_config
    codec = Section(mimi.to_dict(), "codec_config")
    check_rates(codec, "upsampling_ratios")
    codec = Section(mimi.to_dict() | {"frame_rate": mimi.frame_rate}, "codec_config")
    decoders = [_decoder(hf, "", reads_chats=True), _decoder(depth, "depth_decoder_config")]
    _check(Section(hf.to_dict()), codec)
    return CsmConfig(
        backbone=decoders[0],
        depth=decoders[1],
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


def _decoder(hf: Any, path: str, *, reads_chats: bool = False) -> DecoderConfig:
    """Positions have one axis."""
    return msgspec.structs.replace(decoder_config(hf, path, reads_chats=reads_chats), qk_norm=False, mrope_section=None)


def _check(own: Section, codec: Section) -> None:
    """Checks the assumptions of the modules. codec: includes values that transformers computes."""
    own.require_supported({"mlp_bias": False})
    own.require_counts("vocab_size", "text_vocab_size", most=2**22)
    own.require_counts("num_codebooks", least=2, most=1024)
    own.require_flags("tie_codebooks_embeddings")
    own.require_index(own["text_vocab_size"], "audio_token_id", "audio_eos_token_id")
    own.require_index(own["vocab_size"], "codebook_eos_token_id")
    same = {"num_codebooks": "num_codebooks", "vocab_size": "vocab_size", "backbone_hidden_size": "hidden_size"}
    depth = own.part("depth_decoder_config")
    depth.require_supported({"mlp_bias": False})
    depth.require_equal({ours: own[its] for ours, its in same.items()})
    _check_codec(codec)
    codec.require_equal({"num_quantizers": own["num_codebooks"]})
    codec.require_supported(
        {
            "model_type": "mimi",
            "use_causal_conv": True,
            "trim_right_ratio": 1.0,
            "pad_mode": "constant",
            "audio_channels": 1,
            "hidden_act": "gelu",
            "sampling_rate": SAMPLE_RATE,
            "frame_rate": SAMPLE_RATE / (PER_FRAME * math.prod(codec["upsampling_ratios"])),
        }
    )


def _check_codec(codec: Section) -> None:
    """Checks widths and kernels of Mimi, bounded so that their powers and products stay small."""
    # The reach of each is a power larger than the one before.
    codec.require_counts("num_residual_layers", least=0, most=16)
    codec.require_counts("dilation_growth_rate", "kernel_size", "last_kernel_size", "residual_kernel_size", most=64)
    codec.require_counts("num_filters", most=1024)
    codec.require_counts("compress", most=codec["num_filters"])
    codec.require_counts("codebook_size", most=2**20)
    codec.require_counts("codebook_dim", "vector_quantization_hidden_dimension", most=2**16)
    codec.require_counts("num_quantizers", least=2, most=1024)
    codec.require_counts("num_semantic_quantizers", most=codec["num_quantizers"] - 1)
    codec.require_multiple("hidden_size", of="upsample_groups")
    codec.require_numbers("norm_eps", most=1.0)
    codec.require_flags("use_conv_shortcut")
