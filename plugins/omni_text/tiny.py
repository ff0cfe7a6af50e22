"""Writes a tiny random Qwen3 checkpoint in the published format, of the dense kind: the default that needs no download."""

import os
from pathlib import Path
from typing import Any

import msgspec
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

from omni.tiny import (
    ChatTokens,
    build_tokenizer,
    decoder_settings,
    fill,
    generation_config,
    seeded,
    tame_text,
    tiny_shape,
    write_json,
)

_SPECIAL = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|>
<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call>
<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response>
<think> </think>
"""
TOKENS = ChatTokens(
    special=tuple(_SPECIAL.split()),
    plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)


class TinyShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a tiny Qwen3. stop_gain: relative gain of the stop token; 0 never stops, 1 is that of other tokens."""

    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden_size: int = 64
    max_positions: int = 4096
    stop_gain: float = 1.0


def write_tiny(directory: str | os.PathLike[str], *, seed: int = 0, **shape: object) -> None:
    """Writes a checkpoint of about 0.2 M parameters, in float32, with tokenizer files, into `directory`.

    It differs from a published one in its sizes only, and transformers reads it too. The same arguments write the same
    checkpoint. shape: fields of `TinyShape` that differ from their defaults.

    Raises ConfigError for a field that `TinyShape` lacks or a value of a wrong type.
    """
    sizes = tiny_shape(TinyShape, shape)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(TOKENS, Qwen2Tokenizer, sizes.max_positions)
    tokenizer.save_pretrained(folder)
    config = _config(sizes, tokenizer)
    with seeded(seed) as generator:
        model = Qwen3ForCausalLM(Qwen3Config(**config)).eval()
        model.generation_config = generation_config(tokenizer)
        fill(model, generator)
        tame_text(model, tokenizer, sizes.stop_gain)
        model.save_pretrained(folder)
    # As published: without the fields that transformers fills.
    write_json(folder / "config.json", config)


def _config(shape: TinyShape, tokenizer: Any) -> dict[str, Any]:
    layers = (shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.hidden_size)
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **decoder_settings(*layers, shape.max_positions),
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        # Published vocabularies end with unused ids, too.
        "vocab_size": -(-len(tokenizer) // 64) * 64,
    }
