"""The fields of config.json that the stages use, typed. transformers parses the file and fills its defaults."""

from typing import Any

import msgspec

from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import Section, check_rates
from omni.checkpoint.hf_config import config_class, parse_config
from omni.frontend.chat import MediaConfig
from omni_ar.layers import DecoderConfig, decoder_config
from omni_encoder.towers.checks import check_clip_tower, check_picture_tower
from omni_vocoder.layers import WindowShape, window_shape

_MARKS = ("im_start", "im_end", "user", "assistant", "tts_bos", "tts_eos", "tts_pad")
_CODES = ("codec_bos", "codec_pad", "codec_nothink", "codec_think_bos", "codec_think_eos")


class TalkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The talker and its code predictor.

    accept_hidden_layer: thinker layer whose input hidden states condition it at media positions. speakers: codec ids by voice.
    """

    decoder: DecoderConfig
    predictor: DecoderConfig
    predictor_vocab_size: int
    vocab_size: int
    num_groups: int
    thinker_width: int
    thinker_vocab_size: int
    projection_width: int
    accept_hidden_layer: int
    speakers: dict[str, int]
    codec_bos: int
    codec_eos: int
    codec_pad: int
    codec_nothink: int
    codec_think_bos: int
    codec_think_eos: int


class OmniConfig(MediaConfig, frozen=True, kw_only=True):
    """tied: whether the thinker's output matrix is its embedding table. talker, code2wav_window: None in the Thinking layout. hf:
    transformers' config, for its towers."""

    thinker: DecoderConfig
    tied: bool
    talker: TalkerConfig | None
    im_start: int
    im_end: int
    user: int
    assistant: int
    tts_bos: int
    tts_eos: int
    tts_pad: int
    audio_half_chunk: int
    code2wav: Section
    code2wav_window: WindowShape | None


@once_per_config
def read_config(raw: dict[str, Any]) -> OmniConfig:
    """Raises CheckpointError if config.json does not describe a Qwen3-Omni model."""
    hf = parse_config(config_class("Qwen3OmniMoeConfig"), raw, "Qwen3-Omni")
    thinker, whole = hf.thinker_config, Section(hf.to_dict())
    decoder = decoder_config(thinker.text_config, "thinker_config.text_config", reads_chats=True)
    _check(whole)
    vocoder = whole.part("code2wav_config")
    return OmniConfig(
        thinker=decoder,
        thinker_vocab_size=thinker.text_config.vocab_size,
        tied=thinker.tie_word_embeddings,
        talker=_talker(hf) if hf.enable_audio_output else None,
        audio_token=thinker.audio_token_id,
        image_token=thinker.image_token_id,
        position_id_per_seconds=thinker.position_id_per_seconds,
        spatial_merge_size=thinker.vision_config.spatial_merge_size,
        audio_half_chunk=thinker.audio_config.n_window,
        code2wav=vocoder,
        code2wav_window=window_shape(vocoder) if hf.enable_audio_output else None,
        hf=hf,
        **{name: whole[f"{name}_token_id"] for name in _MARKS},
    )


def _check(whole: Section) -> None:
    """Raises CheckpointError for indices out of range, which would otherwise fail at a step."""
    thinker, talker, vocoder = (whole.part(f"{name}_config") for name in ("thinker", "talker", "code2wav"))
    text = thinker.part("text_config")
    text.require_counts("vocab_size", most=2**22)
    text.part("rope_parameters").require_list("mrope_section", 3, 3)
    whole.require_flags("enable_audio_output")
    thinker.require_index(text["vocab_size"], "audio_token_id", "image_token_id")
    thinker.require_counts("position_id_per_seconds", most=2**16)
    whole.require_index(text["vocab_size"], *(f"{name}_token_id" for name in _MARKS))
    check_clip_tower(thinker.part("audio_config"), text["hidden_size"], stride=8)
    check_picture_tower(thinker.part("vision_config"), text["hidden_size"])
    if not whole["enable_audio_output"]:
        return
    _check_talker(talker, text)
    _check_vocoder(vocoder)


def _check_talker(talker: Section, thinker_text: Section) -> None:
    text, predictor = talker.part("text_config"), talker.part("code_predictor_config")
    text.require_counts("vocab_size", "shared_expert_intermediate_size", "moe_intermediate_size", most=2**22)
    text.part("rope_parameters").require_list("mrope_section", 3, 3)
    predictor.require_counts("vocab_size", most=2**22)
    predictor.require_equal({"hidden_size": text["hidden_size"]})
    talker.require_counts("num_code_groups", least=2, most=1024)
    talker.require_equal({"thinker_hidden_size": thinker_text["hidden_size"]})
    codes = text["vocab_size"]
    talker.require_index(thinker_text["num_hidden_layers"] + 1, "accept_hidden_layer")
    voices = talker["speaker_id"]
    talker.require(bool(voices) and isinstance(voices, dict), "speaker_id", "names no voice")
    talker.require("" not in voices, "speaker_id", "has a voice without a name")
    talker.require_indices(codes, "speaker_id")
    talker.require_index(codes, "codec_eos_token_id", *(f"{name}_id" for name in _CODES))


def _check_vocoder(vocoder: Section) -> None:
    vocoder.require_supported({"hidden_act": "silu"})
    vocoder.require_counts("codebook_size", most=2**22)
    vocoder.require_counts("num_quantizers", most=1024)
    vocoder.require_numbers("rms_norm_eps", most=1.0)
    check_rates(vocoder, "upsampling_ratios", "upsample_rates")
    vocoder.require_counts("decoder_dim", least=2 ** len(vocoder["upsample_rates"]))


def _talker(hf: Any) -> TalkerConfig:
    talker, text = hf.talker_config, hf.talker_config.text_config
    values = talker.to_dict()
    return TalkerConfig(
        # All layers of the talker are mixtures with a shared expert, independent of the sparse-step fields.
        decoder=msgspec.structs.replace(
            decoder_config(text, "talker_config.text_config", reads_chats=True),
            shared_expert_width=text.shared_expert_intermediate_size,
            dense_layers=(),
        ),
        # A frame has one axis of positions.
        predictor=msgspec.structs.replace(
            decoder_config(talker.code_predictor_config, "talker_config.code_predictor_config"), mrope_section=None
        ),
        predictor_vocab_size=talker.code_predictor_config.vocab_size,
        vocab_size=text.vocab_size,
        num_groups=talker.num_code_groups,
        thinker_width=talker.thinker_hidden_size,
        thinker_vocab_size=hf.thinker_config.text_config.vocab_size,
        projection_width=text.intermediate_size,
        accept_hidden_layer=talker.accept_hidden_layer,
        speakers={name.lower(): code for name, code in talker.speaker_id.items()},
        codec_eos=talker.codec_eos_token_id,
        **{name: values[f"{name}_id"] for name in _CODES},
    )
