"""A tiny Qwen3 checkpoint with a tokenizer, for what only a whole chat shows."""

import json
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from omni_qwen3_omni.tiny.tokenizer import write_tokenizer

END = "<|im_end|>"


def write_chat_model(folder: Path) -> Path:
    """Writes a random model that says anything, mostly words, and ends now and then; gives the folder back."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, 1024)
    torch.manual_seed(3)
    config = Qwen3Config(
        # As published ones do, the model has more ids than the tokenizer.
        vocab_size=-(-len(tokenizer) // 64) * 64 + 64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).eval().save_pretrained(folder)
    ends = {"eos_token_id": tokenizer.convert_tokens_to_ids(END), "do_sample": True, "temperature": 1.0, "top_k": 0}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    return folder
