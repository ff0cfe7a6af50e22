"""The fields of config.json that the stages use, typed. transformers parses the file and fills its defaults."""

from typing import Any

import msgspec

from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import RESTORE_FILE, Section
from omni.checkpoint.hf_config import config_class, parse_config
from omni.errors import CheckpointError
from omni.frontend.chat import MediaConfig
from omni_ar.layers import DecoderConfig, decoder_config
from omni_diffusion.layers.checks import check_block_transformer, check_speaker_encoder, check_upsampler
from omni_encoder.towers.checks import check_clip_tower, check_picture_tower


class TalkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """embedding_width: width of the thinker's hidden states and of the embeddings of codes."""

    decoder: DecoderConfig
    vocab_size: int
    embedding_width: int
    text_eos: int
    text_pad: int
    codec_bos: int
    codec_eos: int
    codec_pad: int
    codec_mask: int


class OmniConfig(MediaConfig, frozen=True, kw_only=True):
    """talker: None if speech is switched off. tied: whether the thinker's output matrix is its embedding table. hf: transformers'
    config, for its towers and for token2wav."""

    thinker: DecoderConfig
    tied: bool
    talker: TalkerConfig | None


@once_per_config
def read_config(raw: dict[str, Any]) -> OmniConfig:
    """Raises CheckpointError if config.json does not describe a Qwen2.5-Omni model."""
    hf = parse_config(config_class("Qwen2_5OmniConfig"), raw, "Qwen2.5-Omni")
    thinker = hf.thinker_config
    decoder = _decoder("thinker_config.text_config", thinker.text_config)
    _check(Section(hf.to_dict()))
    return OmniConfig(
        thinker=decoder,
        thinker_vocab_size=thinker.text_config.vocab_size,
        tied=thinker.tie_word_embeddings,
        talker=_talker(hf.talker_config) if hf.enable_audio_output else None,
        audio_token=thinker.audio_token_index,
        image_token=thinker.image_token_index,
        position_id_per_seconds=thinker.position_id_per_seconds,
        spatial_merge_size=thinker.vision_config.spatial_merge_size,
        hf=hf,
    )


def _decoder(field: str, hf: Any) -> DecoderConfig:
    """Queries, keys and values have biases and no norms; the sections of rotary positions are not interleaved."""
    if hf.use_sliding_window:
        raise CheckpointError(f"config.json: {field}.use_sliding_window", "is not supported", "use full attention")
    plain = decoder_config(hf, field, reads_chats=True)
    if plain.mrope_section is None:
        raise CheckpointError(f"config.json: {field}.rope_parameters.mrope_section", "is missing", RESTORE_FILE)
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


def _check(whole: Section) -> None:
    """Raises CheckpointError for inconsistent numbers, which would otherwise fail at a step."""
    thinker, talker, vocoder = (whole.part(f"{name}_config") for name in ("thinker", "talker", "token2wav"))
    text = thinker.part("text_config")
    text.require_counts("vocab_size", most=2**22)
    whole.require_flags("enable_audio_output")
    thinker.require_index(text["vocab_size"], "audio_token_index", "image_token_index")
    thinker.require_counts("position_id_per_seconds", most=2**16)
    check_clip_tower(thinker.part("audio_config"), text["hidden_size"], stride=2)
    check_picture_tower(thinker.part("vision_config"), text["hidden_size"])
    if not whole["enable_audio_output"]:
        return
    _check_talker(talker, text)
    dit, bigvgan = vocoder.part("dit_config"), vocoder.part("bigvgan_config")
    check_block_transformer(dit)
    check_speaker_encoder(dit)
    bigvgan.require_equal({"mel_dim": dit["mel_dim"]})
    check_upsampler(bigvgan)


def _check_talker(talker: Section, text: Section) -> None:
    talker.require_counts("vocab_size", most=2**22)
    talker.require_equal({"embedding_size": text["hidden_size"]})
    talker.require_index(text["vocab_size"], *(f"tts_text_{name}_token_id" for name in ("end", "pad")))
    talker.require_index(
        talker["vocab_size"], *(f"tts_codec_{name}_token_id" for name in ("start", "end", "pad", "mask"))
    )
