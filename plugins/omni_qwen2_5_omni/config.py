"""What the stages need of a checkpoint's config.json, in typed form. transformers parses and fills its defaults."""

from typing import Any

import msgspec
from transformers import Qwen2_5OmniConfig

from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import RESTORE_FILE, Section
from omni.checkpoint.hf_config import parse_config
from omni.errors import CheckpointError
from omni_ar.layers import DecoderConfig, decoder_config
from omni_encoder.towers.checks import check_clip_tower, check_picture_tower
from omni_vocoder.layers import check_rates

_MOST_REACH = 256
"""Of a kernel, and of a dilation."""


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
    """Queries, keys and values have biases and no norms, and the axes of rotary positions lie one behind the other."""
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
    """Raises CheckpointError for numbers that do not fit each other: at a step it would be too late to say so."""
    thinker, talker, vocoder = (whole.part(f"{name}_config") for name in ("thinker", "talker", "token2wav"))
    text = thinker.part("text_config")
    text.require_counts("vocab_size", most=2**22)
    whole.require_flags("enable_audio_output")
    thinker.require_index(text["vocab_size"], "audio_token_index", "image_token_index")
    thinker.require_counts("position_id_per_seconds", most=2**16)
    _check_towers(thinker, text["hidden_size"])
    if not whole["enable_audio_output"]:
        return
    _check_talker(talker, text)
    dit, bigvgan = vocoder.part("dit_config"), vocoder.part("bigvgan_config")
    _check_dit(dit)
    _check_speaker_encoder(dit)
    _check_bigvgan(bigvgan, dit)


def _check_towers(thinker: Section, width: int) -> None:
    vision = thinker.part("vision_config")
    check_clip_tower(thinker.part("audio_config"), width, stride=2)
    check_picture_tower(vision, width)
    vision.require_counts("window_size", least=vision["spatial_merge_size"] * vision["patch_size"], most=2**16)
    vision.require_list("fullatt_block_indexes", least=0, most=vision["depth"])
    vision.require_indices(vision["depth"], "fullatt_block_indexes")


def _check_talker(talker: Section, text: Section) -> None:
    talker.require_counts("vocab_size", most=2**22)
    talker.require_equal({"embedding_size": text["hidden_size"]})
    talker.require_index(text["vocab_size"], *(f"tts_text_{name}_token_id" for name in ("end", "pad")))
    talker.require_index(
        talker["vocab_size"], *(f"tts_codec_{name}_token_id" for name in ("start", "end", "pad", "mask"))
    )


def _check_dit(dit: Section) -> None:
    dit.require_counts("hidden_size", "mel_dim", "emb_dim", "enc_dim", "enc_emb_dim", "num_attention_heads")
    dit.require_counts("num_embeds", most=2**22)
    dit.require_counts("num_hidden_layers", most=1024)
    dit.require_numbers("ff_mult", most=1024)
    # Sines in one half, cosines in the other; and dimensions turn in pairs.
    for name in ("hidden_size", "head_dim"):
        dit.require_counts(name, least=2)
        dit.require(dit[name] % 2 == 0, name, f"is odd: {dit[name]}")
    rope = dit.part("rope_parameters")
    rope.require_numbers("rope_theta")
    # A block is a whole number of codes.
    dit.require_counts("block_size", "repeats", most=2**12)
    dit.require_multiple("block_size", of="repeats")
    for name in ("look_ahead_layers", "look_backward_layers"):
        dit.require_list(name, least=0, most=1024)
        dit.require_indices(dit["num_hidden_layers"], name)


def _check_speaker_encoder(dit: Section) -> None:
    dit.require_list("enc_channels", least=3)
    for name in ("enc_kernel_sizes", "enc_dilations"):
        dit.require_list(name, like="enc_channels")
    dit.require_counts("enc_channels", "enc_se_channels", "enc_attention_channels", most=2**14)
    dit.require_counts("enc_kernel_sizes", "enc_dilations", most=_MOST_REACH)
    # One convolution for each.
    dit.require_counts("enc_res2net_scale", most=1024)
    for place, channels in enumerate(dit["enc_channels"][:-2]):
        scale = dit["enc_res2net_scale"]
        problem = f"is {channels}, no multiple of enc_res2net_scale, which is {scale}"
        dit.require(channels % scale == 0, f"enc_channels[{place}]", problem)


def _check_bigvgan(bigvgan: Section, dit: Section) -> None:
    bigvgan.require_equal({"mel_dim": dit["mel_dim"]})
    check_rates(bigvgan, "upsample_rates")
    bigvgan.require_list("upsample_kernel_sizes", like="upsample_rates")
    bigvgan.require_counts("upsample_kernel_sizes", most=2**10)
    bigvgan.require_counts("upsample_initial_channel", least=2 ** len(bigvgan["upsample_rates"]), most=2**16)
    bigvgan.require_list("resblock_kernel_sizes")
    bigvgan.require_counts("resblock_kernel_sizes", most=_MOST_REACH)
    bigvgan.require_list("resblock_dilation_sizes", like="resblock_kernel_sizes")
    for place in range(len(bigvgan["resblock_dilation_sizes"])):
        # As a table, so that an error names the entry.
        name = f"resblock_dilation_sizes[{place}]"
        each = Section({name: bigvgan["resblock_dilation_sizes"][place]}, "token2wav_config.bigvgan_config")
        each.require_list(name)
        each.require_counts(name, most=_MOST_REACH)
