"""Writes a folder shaped like the released Qwen3-Omni-30B-A3B, without weights: for `load_format="dummy"`.

    python benchmarks/released_shape.py DIR

Sizes are those of the published config.json; the tokenizer is the tiny checkpoint's, so prompts are longer than published ones
and text is gibberish, which speed does not notice.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from omni_qwen3_omni.tiny import write_tiny

_VOCAB = 152_064

_THINKER_TEXT = {
    "vocab_size": _VOCAB,
    "hidden_size": 2048,
    "intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 65_536,
    "rope_theta": 1_000_000,
}
_AUDIO = {
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "output_dim": 2048,
    "downsample_hidden_size": 480,
}
_VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
_TALKER_TEXT = {
    "vocab_size": 3072,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "moe_intermediate_size": 384,
    "shared_expert_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 6,
    "max_position_embeddings": 65_536,
    "rope_theta": 1_000_000,
}
_PREDICTOR = {
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_code_groups": 16,
    "rope_theta": 1_000_000,
}
_TALKER = {
    "num_code_groups": 16,
    "thinker_hidden_size": 2048,
    "accept_hidden_layer": 24,
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
}
_CODE2WAV = {
    "codebook_size": 2048,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "sliding_window": 72,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_quantizers": 16,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "decoder_dim": 1536,
}
_ROPE = {"mrope_interleaved": True, "interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}


def write_released_shape(directory: Path) -> None:
    """config.json with the released sizes, tokenizer and processor files; no weights."""
    write_tiny(directory)
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    path = directory / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    thinker, talker = config["thinker_config"], config["talker_config"]
    thinker["text_config"] |= _THINKER_TEXT | {"rope_scaling": _ROPE}
    thinker["audio_config"] |= _AUDIO
    thinker["vision_config"] |= _VISION
    talker |= _TALKER
    talker["text_config"] |= _TALKER_TEXT | {"rope_scaling": _ROPE}
    talker["code_predictor_config"] |= _PREDICTOR
    config["code2wav_config"] |= _CODE2WAV
    config["dtype"] = "bfloat16"
    path.write_text(json.dumps(config, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    write_released_shape(parser.parse_args().directory)


if __name__ == "__main__":
    main()
