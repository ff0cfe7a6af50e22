"""What the stages need of a checkpoint's config.json, in typed form. transformers parses the file and fills its defaults."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from transformers import Qwen3OmniMoeConfig

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni_ar.layers import DecoderConfig, decoder_config
from omni_qwen3_omni.quiet import quiet


class TalkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The talker and its code predictor.

    accept_hidden_layer: thinker layer whose input hidden states condition it at media positions. speakers: voice to codec id.
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


class OmniConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole checkpoint. talker: None in the Thinking layout. hf: transformers' own object, for its towers."""

    thinker: DecoderConfig
    thinker_vocab_size: int
    talker: TalkerConfig | None
    audio_token: int
    image_token: int
    im_start: int
    im_end: int
    user: int
    assistant: int
    tts_bos: int
    tts_eos: int
    tts_pad: int
    position_id_per_seconds: int
    spatial_merge_size: int
    audio_window: int
    code2wav: Mapping[str, Any]
    hf: Any


def read_config(checkpoint: Checkpoint) -> OmniConfig:
    """Raises CheckpointError if config.json does not describe a Qwen3-Omni model."""
    return _parse(msgspec.json.encode(checkpoint.config))


@lru_cache(maxsize=4)  # every stage of a checkpoint asks
def _parse(config_json: bytes) -> OmniConfig:
    raw = msgspec.json.decode(config_json)
    try:
        with quiet():
            hf: Any = Qwen3OmniMoeConfig.from_dict(raw)
    except Exception as error:  # transformers raises many kinds, all of them about this one file
        raise CheckpointError(
            "config.json", f"{type(error).__name__}: {error}", "use a published Qwen3-Omni folder"
        ) from error
    thinker = hf.thinker_config
    config = OmniConfig(
        thinker=decoder_config(thinker.text_config),
        thinker_vocab_size=thinker.text_config.vocab_size,
        talker=_talker(hf) if hf.enable_audio_output else None,
        audio_token=thinker.audio_token_id,
        image_token=thinker.image_token_id,
        im_start=hf.im_start_token_id,
        im_end=hf.im_end_token_id,
        user=hf.user_token_id,
        assistant=hf.assistant_token_id,
        tts_bos=hf.tts_bos_token_id,
        tts_eos=hf.tts_eos_token_id,
        tts_pad=hf.tts_pad_token_id,
        position_id_per_seconds=thinker.position_id_per_seconds,
        spatial_merge_size=thinker.vision_config.spatial_merge_size,
        audio_window=thinker.audio_config.n_window,
        code2wav=raw.get("code2wav_config", {}),
        hf=hf,
    )
    _check(config)
    return config


def _check(config: OmniConfig) -> None:
    """Raises CheckpointError for numbers that lie outside what they index: at a step it would be too late to say so."""
    tokens = ("audio_token", "image_token", "im_start", "im_end", "user", "assistant", "tts_bos", "tts_eos", "tts_pad")
    values = msgspec.structs.asdict(config)
    for name in tokens:
        _check_range(f"{name}_id", values[name], config.thinker_vocab_size)
    talker = config.talker
    if talker is None:
        return
    _check_range("talker_config.accept_hidden_layer", talker.accept_hidden_layer, config.thinker.num_layers + 1)
    if not talker.speakers:
        raise CheckpointError(
            "config.json: talker_config.speaker_id", "names no voice", "use the config.json as published"
        )
    for voice, code in talker.speakers.items():
        _check_range(f"talker_config.speaker_id.{voice}", code, talker.vocab_size)
    codes = msgspec.structs.asdict(talker)
    for name in ("codec_bos", "codec_eos", "codec_pad", "codec_nothink", "codec_think_bos", "codec_think_eos"):
        _check_range(f"talker_config.{name}", codes[name], talker.vocab_size)


def _check_range(field: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        problem = f"{value} is out of range, 0 to {end - 1}"
        raise CheckpointError(f"config.json: {field}", problem, "use the config.json that belongs to these weights")


def _talker(hf: Any) -> TalkerConfig:
    talker, text = hf.talker_config, hf.talker_config.text_config
    return TalkerConfig(
        # The talker's layers are all mixtures with a shared expert, whatever the sparse-step fields say.
        decoder=msgspec.structs.replace(
            decoder_config(text), shared_expert_width=text.shared_expert_intermediate_size, dense_layers=()
        ),
        predictor=decoder_config(talker.code_predictor_config),
        predictor_vocab_size=talker.code_predictor_config.vocab_size,
        vocab_size=text.vocab_size,
        num_groups=talker.num_code_groups,
        thinker_width=talker.thinker_hidden_size,
        thinker_vocab_size=hf.thinker_config.text_config.vocab_size,
        projection_width=text.intermediate_size,
        accept_hidden_layer=talker.accept_hidden_layer,
        speakers={name.lower(): code for name, code in (talker.speaker_id or {}).items()},
        codec_bos=talker.codec_bos_id,
        codec_eos=talker.codec_eos_token_id,
        codec_pad=talker.codec_pad_id,
        codec_nothink=talker.codec_nothink_id,
        codec_think_bos=talker.codec_think_bos_id,
        codec_think_eos=talker.codec_think_eos_id,
    )
