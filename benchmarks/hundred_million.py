"""Writes a random Qwen3-Omni of about 100 million parameters, in proportion to the released one.

    python benchmarks/hundred_million.py DIR

Widths are about an eighth of the released ones in the vocoder, a quarter to a third in the language models; the thinker holds
half of the parameters; 16 code groups, so 15 passes of the code predictor for each frame, as released. The vocabulary is the
tiny tokenizer's. The model never stops by itself: requests run to the length they ask for.
"""

import argparse
from pathlib import Path
from typing import Any

from omni_qwen3_omni.tiny import write_tiny

SHAPE: dict[str, Any] = {
    "layers": 8,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
    "experts": 16,
    "top_k": 4,
    "expert_size": 256,
    "accept_hidden_layer": 4,
    "stop_gain": 0.0,
    "vision_layers": 4,
    "vision_heads": 4,
    "vision_hidden_size": 256,
    "deepstack": (1, 2),
    "audio_layers": 4,
    "audio_heads": 4,
    "audio_hidden_size": 256,
    "talker_layers": 6,
    "talker_heads": 6,
    "talker_kv_heads": 2,
    "talker_head_dim": 64,
    "talker_hidden_size": 384,
    "talker_experts": 16,
    "talker_top_k": 4,
    "talker_expert_size": 192,
    "shared_expert_size": 384,
    "codec_stop_gain": 0.0,
    "groups": 16,
    "codebook_size": 256,
    "predictor_layers": 3,
    "predictor_heads": 6,
    "predictor_kv_heads": 3,
    "vocoder_layers": 8,
    "vocoder_heads": 4,
    "vocoder_kv_heads": 4,
    "vocoder_hidden_size": 128,
    "vocoder_window": 72,
    "decoder_size": 192,
    "max_shard_size": 2**30,
}
"""Fields of `omni_qwen3_omni.tiny.TinyShape`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    write_tiny(parser.parse_args().directory, **SHAPE)


if __name__ == "__main__":
    main()
