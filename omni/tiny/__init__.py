"""Building blocks for families' tiny random checkpoints, for `omni tiny` and tests: vocabulary, lively weights, files."""

from omni.tiny.chat import ChatTokens, build_tokenizer, byte_tokenizer, generation_config, write_tokenizer
from omni.tiny.shape import SpeakingShape, decoder_settings, mrope_section, tiny_shape, write_json, write_preprocessor
from omni.tiny.weights import fill, sayable, scale_peak, seeded, tame, tame_text

__all__ = [
    "ChatTokens",
    "SpeakingShape",
    "build_tokenizer",
    "byte_tokenizer",
    "decoder_settings",
    "fill",
    "generation_config",
    "mrope_section",
    "sayable",
    "scale_peak",
    "seeded",
    "tame",
    "tame_text",
    "tiny_shape",
    "write_json",
    "write_preprocessor",
    "write_tokenizer",
]
