"""The fields of a Qwen3 config.json that the stage uses."""

import msgspec

from omni.checkpoint import Checkpoint
from omni.checkpoint.checks import Section
from omni.checkpoint.hf_config import config_class, parse_config
from omni.errors import CheckpointError
from omni_ar.layers import DecoderConfig, decoder_config


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A causal text model. tied: whether the output matrix is the embedding table."""

    decoder: DecoderConfig
    vocab_size: int
    tied: bool


def read_config(checkpoint: Checkpoint) -> TextConfig:
    """Raises CheckpointError for an unsupported model."""
    kind = config_class("Qwen3MoeConfig" if checkpoint.config["model_type"] == "qwen3_moe" else "Qwen3Config")
    hf = parse_config(kind, checkpoint.config, "Qwen3")
    decoder = decoder_config(hf, reads_chats=True)
    own = Section(hf.to_dict())
    own.require_counts("vocab_size", most=2**22)
    if decoder.mrope_section is not None:
        problem, remedy = "is not supported", "use a model whose positions have one axis"
        raise CheckpointError("config.json: rope_parameters.mrope_section", problem, remedy)
    return TextConfig(decoder=decoder, vocab_size=hf.vocab_size, tied=hf.tie_word_embeddings)
