"""Writes checkpoint folders of known shapes without weights: for `load_format="dummy"`.

    python benchmarks/shapes.py NAME DIR

Sizes are those of the published config.json files. Text models have no tokenizer: benchmarks feed them token ids. The others' are
the tiny checkpoints', so prompts are longer than published ones and text is gibberish, which speed does not notice.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heard_shape import QWEN2_5_OMNI_3B, QWEN2_5_OMNI_7B, write_heard_shape, write_tiny_heard
from omni_qwen3_omni.tiny import write_tiny
from released_shape import write_released_shape

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "max_position_embeddings": 40_960,
    "attention_bias": False,
    "use_sliding_window": False,
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
}
_QWEN3_06B = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
}
_QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}
_TINY_TEXT = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "dtype": "float32",
    "tie_word_embeddings": True,
}


def write_text_shape(directory: Path, sizes: Mapping[str, Any]) -> None:
    """A folder that the text family serves, of a published Qwen3 config with these sizes."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_QWEN3 | dict(sizes), indent=1))


def write_tiny_omni(directory: Path) -> None:
    """The tiny Qwen3-Omni, without its weights."""
    write_tiny(directory)
    for file in directory.glob("*.safetensors*"):
        file.unlink()


SHAPES: Mapping[str, Callable[[Path], None]] = {
    "qwen3-0.6b": lambda directory: write_text_shape(directory, _QWEN3_06B),
    "qwen3-8b": lambda directory: write_text_shape(directory, _QWEN3_8B),
    "qwen3-omni-30b": write_released_shape,
    "qwen2.5-omni-3b": lambda directory: write_heard_shape(directory, QWEN2_5_OMNI_3B),
    "qwen2.5-omni-7b": lambda directory: write_heard_shape(directory, QWEN2_5_OMNI_7B),
    "tiny-text": lambda directory: write_text_shape(directory, _TINY_TEXT),
    "tiny-omni": write_tiny_omni,
    "tiny-qwen2.5-omni": write_tiny_heard,
}
"""The function that writes the folder, by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    SHAPES[arguments.name](arguments.directory)


if __name__ == "__main__":
    main()
