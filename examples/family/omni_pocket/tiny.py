"""Writes a tiny random checkpoint, named and shaped as a published one."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.tiny import byte_tokenizer, decoder_settings, write_json
from omni_pocket.config import PocketConfig, read_config

END = "<|end|>"


def write(directory: Path, *, seed: int) -> None:
    """About 40,000 parameters in float32, and a tokenizer of bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer((), eos_token=END)
    tokenizer.save_pretrained(directory)
    settings = decoder_settings(layers=2, heads=4, kv_heads=2, head_dim=16, width=32, max_positions=512)
    config = {"model_type": "pocket", "vocab_size": len(tokenizer), "rms_norm_eps": 1e-6, **settings}
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"eos_token_id": tokenizer.eos_token_id})
    generator = torch.Generator().manual_seed(seed)
    shapes = weight_shapes(read_config(Checkpoint(directory)))
    save_file({name: random(shape, generator) for name, shape in shapes.items()}, directory / "model.safetensors")


def weight_shapes(config: PocketConfig) -> dict[str, tuple[int, ...]]:
    """The weights' names, and their shapes."""
    width, mlp = config.hidden_size, config.intermediate_size
    heads, kv_heads = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    layer = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (heads, width),
        "self_attn.k_proj": (kv_heads, width),
        "self_attn.v_proj": (kv_heads, width),
        "self_attn.o_proj": (width, heads),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (mlp, width),
        "mlp.up_proj": (mlp, width),
        "mlp.down_proj": (width, mlp),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config.vocab_size, width),
        **{f"model.layers.{i}.{name}": shape for i in range(config.num_hidden_layers) for name, shape in layer.items()},
        "model.norm": (width,),
        "lm_head": (config.vocab_size, width),
    }
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Lively: matrices double the scale of their inputs, and the weights of norms differ from one another."""
    weight = torch.randn(shape, generator=generator)
    return 1 + 0.1 * weight if len(shape) == 1 else 2 * weight * shape[1] ** -0.5
