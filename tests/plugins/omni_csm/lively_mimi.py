"""Small codecs with random parameters under which every layer and every context is heard, and ours with the same parameters.

At transformers' default initialization all codebooks are zero, and the output with them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MimiConfig, MimiModel

from omni.checkpoint.checks import Section
from omni_csm.config import PER_FRAME
from omni_csm.mimi.codec import settle_codebooks
from omni_csm.mimi.encoder import AudioEncoder
from omni_csm.mimi.vocoder import Vocoder
from omni_vocoder.layers import window_shape

_SMALL: dict[str, Any] = {
    "codebook_size": 32,
    "codebook_dim": 12,
    "vector_quantization_hidden_dimension": 12,
    "num_quantizers": 6,
    "hidden_size": 24,
    "upsample_groups": 24,
    "num_filters": 4,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "sliding_window": 10,
}
SHAPES: dict[str, dict[str, Any]] = {
    "published ratios": _SMALL,
    "grouped heads, two units, shortcuts": _SMALL
    | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "upsampling_ratios": [3, 2],
        "num_residual_layers": 2,
        "use_conv_shortcut": True,
        "attention_bias": True,
        "num_semantic_quantizers": 2,
        "sliding_window": 5,
    },
    "no projection, dense upsampling": _SMALL
    | {
        "codebook_dim": 24,
        "vector_quantization_hidden_dimension": 24,
        "upsample_groups": 1,
        "upsampling_ratios": [2, 5, 3],
        "compress": 4,
        "kernel_size": 5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_window": 1,
    },
}


@dataclass(frozen=True)
class Codec:
    """ours, encoder: with the parameters of `reference`."""

    reference: MimiModel
    ours: Vocoder
    encoder: AudioEncoder

    @property
    def config(self) -> MimiConfig:
        config: MimiConfig = self.reference.config
        return config

    def codes(self, frames: int, seed: int = 0, rows: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.config.codebook_size, (rows, frames, self.config.num_quantizers), generator=generator)

    @torch.no_grad()
    def whole(self, codes_BNG: Tensor) -> Tensor:
        """The reference's decode, which must be neither mute nor constant."""
        wav_BS: Tensor = self.reference.decode(codes_BNG.transpose(1, 2)).audio_values[:, 0]
        assert 0.1 < wav_BS.abs().max() < 2
        assert (wav_BS.std(1) > 0.02).all()
        return wav_BS


def lively_codec(shape: dict[str, Any], dtype: torch.dtype = torch.float32) -> Codec:
    config = MimiConfig(**shape)
    reference = MimiModel(config).eval()
    _enliven(reference, dtype)
    window = window_shape(Section(config.to_dict()), PER_FRAME)
    ours, encoder = Vocoder(config, window).to(dtype), AudioEncoder(config, window).to(dtype)
    for module in (ours, encoder):
        published = reference.state_dict()
        module.load_state_dict({name: published[name] for name in module.state_dict()})
        settle_codebooks(module)
    return Codec(reference, ours, encoder)


@torch.no_grad()
def _enliven(model: MimiModel, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (0.8 if "decoder.layers" in name else 1.0) * _fan_in(module, parameter) ** -0.5)
            elif own in ("weight", "scale"):
                parameter.copy_(1 + 0.1 * noise if own == "weight" else 0.5 + 0.1 * noise)
            else:
                parameter.copy_(0.1 * noise)
    for module in model.quantizer.modules():
        if "embed_sum" in dict(module.named_buffers(recurse=False)):
            usage = 0.5 + torch.rand(module.cluster_usage.shape, generator=generator)
            module.cluster_usage.copy_(usage)
            module.embed_sum.copy_(torch.randn(module.embed_sum.shape, generator=generator) * usage[:, None])
    model.to(dtype)
    codes = torch.randint(model.config.codebook_size, (1, model.config.num_quantizers, 60), generator=generator)
    last = model.decoder.layers[-1].conv
    gain = 0.7 / model.decode(codes).audio_values.abs().max()
    for parameter in last.parameters():
        parameter.mul_(gain)


def _fan_in(module: nn.Module, parameter: Tensor) -> float:
    if isinstance(module, nn.ConvTranspose1d):
        return module.in_channels / module.groups * module.kernel_size[0] / module.stride[0]
    return float(parameter[0].numel())
