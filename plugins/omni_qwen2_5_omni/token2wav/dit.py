"""The diffusion transformer. Shapes as in `omni_diffusion.layers.block_attention`; M mel bins, G code groups: 1, N codes of
a row, V values of a voice.

Reach of a frame: as released, layers 0 and 20 of 22 see the block before, layer 10 the one after. So an evaluation
carries 2 blocks forward and 1 backward, and the 36 evaluations of nine steps 72 and 36 (8.6 s). Windows without history
equal transformers' result for the same slice of codes and noise.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    DiTCodecEmbedding,
    DiTTimestepEmbedding,
    ECAPA_TimeDelayNet,
)

from omni_ar.layers import Linear, StackedLinear
from omni_diffusion.layers import BlockAttention, BlockTransformer, FeedForward, ModulatedLayer

_ROTARY_HEADS = 1
"""The published model was trained with positions in its first head alone."""


class _InputEmbedding(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.parts = (config.mel_dim, config.enc_dim, config.emb_dim, config.enc_emb_dim)
        self.proj = nn.Linear(sum(self.parts), config.hidden_size)
        self.spk_encoder = ECAPA_TimeDelayNet(config)


class DiT(BlockTransformer):
    """Parameters are named as published. config: transformers' `Qwen2_5OmniDiTConfig`.

    As released, its history takes 27 MiB per row in float32. Weights that depend on times alone are not kept.
    """

    def __init__(self, config: Any, guidance: float = 0.5) -> None:
        super().__init__(
            (_layer(config, index) for index in range(config.num_hidden_layers)),
            Linear(config.hidden_size, config.mel_dim),
            width=config.hidden_size,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            rope_theta=config.rope_parameters["rope_theta"],
            latent_width=config.mel_dim,
            block=config.block_size,
            repeats=config.repeats,
            guidance=guidance,
        )
        self._num_embeds: int = config.num_embeds
        self.time_embed = DiTTimestepEmbedding(config.hidden_size)
        self.text_embed = DiTCodecEmbedding(config.num_embeds, config.emb_dim, config.repeats)
        self.input_embed = _InputEmbedding(config)

    def embed_times(self, times_E: Tensor) -> Tensor:
        first, activation, last = self.time_embed.time_mlp
        # The sines are in float32 for every dtype of the weights.
        sines_ED = self.time_embed.time_embed(times_E).to(first.weight.dtype)
        time_ED: Tensor = last(activation(first(sines_ED)))
        return time_ED

    def embed_latents(self, noisy_BKFM: Tensor) -> Tensor:
        weight = self.input_embed.proj.weight
        return linear(noisy_BKFM.to(weight.dtype), weight[:, : self.latent_width])

    def voice(self, speaker_V: Tensor, reference_TM: Tensor) -> Tensor:
        """The condition of the branches, `[U, enc_dim + enc_emb_dim]`, from a voice's embedding and reference mel."""
        references = torch.stack((reference_TM, torch.zeros_like(reference_TM)))[: self.branches]
        speakers = torch.stack((speaker_V, torch.zeros_like(speaker_V)))[: self.branches]
        voice_UV: Tensor = torch.cat((self.input_embed.spk_encoder(references), speakers), 1)
        return voice_UV

    def condition(self, codes_BNG: Tensor, voices_BUV: Tensor) -> Tensor:
        _, by_reference, by_code, by_speaker = self.input_embed.proj.weight.split(self.input_embed.parts, dim=1)
        # Control codes have no sound; after one (with `ignore_eos`) an arbitrary code's sound is rendered.
        codes_BN = codes_BNG[:, :, 0].clamp(max=self._num_embeds)
        codes_BUN = torch.stack((codes_BN, torch.zeros_like(codes_BN)), 1)[:, : self.branches]
        spoken_TD = linear(self.text_embed(codes_BUN.flatten(0, 1)), by_code, self.input_embed.proj.bias)
        voiced_BUD = linear(voices_BUV, torch.cat((by_reference, by_speaker), 1))
        condition_BUTD: Tensor = spoken_TD.unflatten(0, codes_BUN.shape[:2]) + voiced_BUD[:, :, None]
        return condition_BUTD


def _layer(config: Any, index: int) -> ModulatedLayer:
    back, width = sorted(set(config.look_backward_layers)), config.hidden_size
    inner, between = config.num_attention_heads * config.head_dim, int(width * config.ff_mult)
    attention = BlockAttention(
        StackedLinear(width, dict.fromkeys(("to_q", "to_k", "to_v"), inner), bias=True),
        Linear(inner, width),
        heads=config.num_attention_heads,
        rotary_heads=_ROTARY_HEADS,
        ahead=index in config.look_ahead_layers,
        past=back.index(index) if index in back else None,
    )
    return ModulatedLayer(width, attention, FeedForward(Linear(width, between), Linear(between, width)))
