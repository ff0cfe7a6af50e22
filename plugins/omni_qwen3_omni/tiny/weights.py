"""Random weights for a tiny checkpoint, under their published names.

Every part counts: default initializations leave a tiny model saying one token for ever, whatever it is shown, and its
vocoder silent. Here matrices keep the scale of what they multiply, biases and norm weights differ from each other, and
the waveform is scaled to a peak of one half.
"""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

Weights = dict[str, torch.Tensor]

_PEAK = 0.5
_MOVED = (
    ("thinker.model.audio_tower.", "thinker.audio_tower."),
    ("thinker.model.visual.", "thinker.visual."),
    ("thinker.model.language_model.", "thinker.model."),
)
"""Where later releases of transformers keep modules, and where they are published."""
_CALIBRATION_FRAMES = 64


def build_model(config: Mapping[str, Any], seed: int) -> Qwen3OmniMoeForConditionalGeneration:
    """The model that `config` describes, on the CPU in float32, with weights that follow from `seed` alone."""
    # Building draws from the global generator; what it draws is overwritten.
    with torch.random.fork_rng(devices=[]):
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in model.named_modules():
            for own, parameter in module.named_parameters(recurse=False):
                _fill(f"{name}.{own}", module, parameter, generator)
        if model.has_talker:
            _scale_waveform(model.code2wav, generator)
    model.eval()
    return model


def _fill(name: str, module: nn.Module, parameter: torch.Tensor, generator: torch.Generator) -> None:
    parameter.normal_(generator=generator)
    if isinstance(module, nn.Embedding):
        return
    if parameter.dim() > 1:
        # The vocoder is deep and has no norms in its decoder: at a gain of 1 it is chaotic, and amplifies float32 rounding to
        # 1e-4 of its peak. The language models are shallow.
        gain = 0.8 if name.startswith("code2wav") else 2.0
        parameter.mul_(gain / math.sqrt(_fan_in(module, parameter)))
    elif name.endswith("bias"):
        parameter.mul_(0.1)
    elif name.endswith(("alpha", "beta")):
        # Logarithms of the frequency and of the inverse height of a periodic activation.
        parameter.mul_(0.2)
    else:
        parameter.mul_(0.1).add_(1.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0)


def _fan_in(module: nn.Module, parameter: torch.Tensor) -> float:
    """How many products an output sums: of a transposed convolution, only the taps that meet at one place."""
    if isinstance(module, nn.ConvTranspose1d):
        return module.in_channels * module.kernel_size[0] / module.stride[0]
    # A stack of expert matrices [E, out, in] sums over its last dimension alone.
    is_convolution = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return math.prod(parameter.shape[1:]) if is_convolution else parameter.shape[-1]


def _scale_waveform(vocoder: nn.Module, generator: torch.Generator) -> None:
    """Scales the last convolution, to which the waveform is proportional, until random codes peak at `_PEAK`."""
    last = vocoder.decoder[-1].conv  # type: ignore[index, union-attr]
    config = vocoder.config
    shape = (1, config.num_quantizers, _CALIBRATION_FRAMES)  # type: ignore[union-attr]
    codes_BQN = torch.randint(config.codebook_size, shape, generator=generator)  # type: ignore[union-attr, arg-type]
    # Small first: the vocoder clips at one.
    for parameter in last.parameters():
        parameter.mul_(1e-3)
    peak = vocoder(codes_BQN).abs().max()
    for parameter in last.parameters():
        parameter.mul_(_PEAK / peak)


def damp_rows(head: nn.Linear, rows: Collection[int], gain: float) -> None:
    """Scales the logits of some ids: with a gain far below one they never win, above one they win often."""
    with torch.no_grad():
        head.weight[sorted(rows)] *= gain


def published(state: Mapping[str, torch.Tensor]) -> Weights:
    """The weights under their published names: an expert has matrices of its own, the module stacks them."""
    weights: Weights = {}
    for own, tensor in state.items():
        name = next((new + own.removeprefix(old) for old, new in _MOVED if own.startswith(old)), own)
        stem, _, kind = name.rpartition(".experts.")
        if kind == "gate_up_proj":
            for expert, matrix in enumerate(tensor):
                gate, up = matrix.chunk(2)
                weights[f"{stem}.experts.{expert}.gate_proj.weight"] = gate
                weights[f"{stem}.experts.{expert}.up_proj.weight"] = up
        elif kind == "down_proj":
            for expert, matrix in enumerate(tensor):
                weights[f"{stem}.experts.{expert}.down_proj.weight"] = matrix
        else:
            weights[name] = tensor
    return {name: tensor.detach().contiguous() for name, tensor in weights.items()}


def write_shards(directory: Path, weights: Weights, max_shard_size: int) -> None:
    """Writes safetensors files of at most `max_shard_size` bytes of weights, and their index."""
    shards: list[Weights] = [{}]
    size = 0
    for name, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > max_shard_size:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        save_file({name: tensor.clone() for name, tensor in shard.items()}, directory / file, metadata={"format": "pt"})
    weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    index = {"metadata": {"total_size": sum(t.nbytes for t in weights.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
