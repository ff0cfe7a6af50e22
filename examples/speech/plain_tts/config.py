"""The fields of config.json that the stages need."""

from typing import Annotated, Any

import msgspec
from transformers import Qwen3Config

from omni import CheckpointError
from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import RESTORE_FILE, require_index
from omni.checkpoint.hf_config import parse_config
from omni.checkpoint.typed_config import typed_config
from omni_ar.layers import DecoderConfig, decoder_config

Count = Annotated[int, msgspec.Meta(ge=1)]


class VocoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """width: channels behind the code tables, halved by each of the upsampling `rates`.
    sample_rate: in Hz."""

    width: Count
    rates: tuple[Count, ...]
    sample_rate: Count


class TtsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """codebook_size: codes of a group. speak_token: the id after the text; speech begins there."""

    text_vocab_size: Count
    codebook_size: Count
    num_groups: Annotated[int, msgspec.Meta(ge=2)]
    speak_token: int
    talker: dict[str, Any]
    code_predictor: dict[str, Any]
    vocoder: VocoderConfig

    @property
    def codec_eos(self) -> int:
        """The id of group 0 that ends the speech, after the codes."""
        return self.codebook_size

    def decoder(self, part: dict[str, Any]) -> DecoderConfig:
        """part: of this config, the settings of a Qwen3 decoder."""
        return decoder_config(parse_config(Qwen3Config, part, "Plain TTS"))


@once_per_config
def read_config(raw: dict[str, Any]) -> TtsConfig:
    """Raises CheckpointError, naming the field, for a config.json that describes no such model."""
    config = typed_config(TtsConfig, raw)
    require_index("config.json: speak_token", config.speak_token, config.text_vocab_size)
    if config.decoder(config.talker).width != config.decoder(config.code_predictor).width:
        field = "config.json: code_predictor.hidden_size"
        raise CheckpointError(field, "is not the talker's", RESTORE_FILE)
    return config
