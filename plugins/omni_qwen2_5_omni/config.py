"""What the stages need of a checkpoint's config.json, in typed form. transformers parses and fills its defaults."""

from typing import Any

import msgspec
from transformers import Qwen2_5OmniConfig

from omni.checkpoint.hf_config import check_index, once_per_config, parse_config
from omni.errors import CheckpointError
from omni_ar.layers import DecoderConfig, decoder_config

_RESTORE = "use the file that belongs to these weights"


class TalkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """embedding_width: that of the thinker's hidden states, which codes are embedded in too."""

    decoder: DecoderConfig
    vocab_size: int
    embedding_width: int
    text_eos: int
    text_pad: int
    codec_bos: int
    codec_eos: int
    codec_pad: int
    codec_mask: int


class OmniConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole checkpoint. talker: None where speech is switched off. tied: the thinker's output matrix is its embedding table.
    hf: transformers' own object, for its towers and for token2wav."""

    thinker: DecoderConfig
    thinker_vocab_size: int
    tied: bool
    talker: TalkerConfig | None
    audio_token: int
    image_token: int
    position_id_per_seconds: int
    spatial_merge_size: int
    hf: Any


@once_per_config
def read_config(raw: dict[str, Any]) -> OmniConfig:
    """Raises CheckpointError if config.json does not describe a Qwen2.5-Omni model."""
    hf = parse_config(Qwen2_5OmniConfig, raw, "Qwen2.5-Omni")
    thinker = hf.thinker_config
    config = OmniConfig(
        thinker=_decoder("thinker_config.text_config", thinker.text_config),
        thinker_vocab_size=thinker.text_config.vocab_size,
        tied=thinker.tie_word_embeddings,
        talker=_talker(hf.talker_config) if hf.enable_audio_output else None,
        audio_token=thinker.audio_token_index,
        image_token=thinker.image_token_index,
        position_id_per_seconds=thinker.position_id_per_seconds,
        spatial_merge_size=thinker.vision_config.spatial_merge_size,
        hf=hf,
    )
    _check(config)
    return config


def _decoder(field: str, hf: Any) -> DecoderConfig:
    """Queries, keys and values have biases and no norms, and the axes of rotary positions lie one behind the other."""
    if hf.use_sliding_window:
        raise CheckpointError(f"config.json: {field}.use_sliding_window", "is not supported", "use full attention")
    plain = decoder_config(hf)
    return msgspec.structs.replace(
        plain, attention_bias=True, output_bias=False, qk_norm=False, mrope_interleaved=False
    )


def _talker(hf: Any) -> TalkerConfig:
    return TalkerConfig(
        decoder=_decoder("talker_config", hf),
        vocab_size=hf.vocab_size,
        embedding_width=hf.embedding_size,
        text_eos=hf.tts_text_end_token_id,
        text_pad=hf.tts_text_pad_token_id,
        codec_bos=hf.tts_codec_start_token_id,
        codec_eos=hf.tts_codec_end_token_id,
        codec_pad=hf.tts_codec_pad_token_id,
        codec_mask=hf.tts_codec_mask_token_id,
    )


def _check(config: OmniConfig) -> None:
    """Raises CheckpointError for numbers that lie outside what they index: at a step it would be too late to say so."""
    for name in ("audio_token", "image_token"):
        check_index(f"config.json: thinker_config.{name}_index", getattr(config, name), config.thinker_vocab_size)
    talker = config.talker
    if talker is None:
        return
    if talker.embedding_width != config.thinker.width:
        problem = f"is {talker.embedding_width}, but the thinker's states are {config.thinker.width} wide"
        raise CheckpointError("config.json: talker_config.embedding_size", problem, _RESTORE)
    values = msgspec.structs.asdict(talker)
    for name in ("text_eos", "text_pad"):
        check_index(f"config.json: talker_config.tts_{name}", values[name], config.thinker_vocab_size)
    for name in ("codec_bos", "codec_eos", "codec_pad", "codec_mask"):
        check_index(f"config.json: talker_config.tts_{name}", values[name], talker.vocab_size)
    dit, bigvgan = config.hf.token2wav_config.dit_config, config.hf.token2wav_config.bigvgan_config
    field = "config.json: token2wav_config"
    if dit.block_size % dit.repeats:
        problem = f"is {dit.block_size}: no whole number of codes, of {dit.repeats} frames each"
        raise CheckpointError(f"{field}.dit_config.block_size", problem, _RESTORE)
    if bigvgan.mel_dim != dit.mel_dim:
        problem = f"is {bigvgan.mel_dim}, but {dit.mel_dim} are made"
        raise CheckpointError(f"{field}.bigvgan_config.mel_dim", problem, _RESTORE)
