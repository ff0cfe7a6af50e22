"""The diffusion transformer. Shapes as in `omni_diffusion.layers.block_attention`; M mel bins, N codes of a row, V a voice.

How far a frame sees: as released, layers 0 and 20 of 22 see the block before, layer 10 the one after. So an evaluation carries 2
blocks forward and 1 backward, and the 36 evaluations of nine steps 72 and 36 (8.6 s). Windows without history are what transformers
gives for the same slice of codes and noise.
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
from omni_diffusion.layers import (
    LAYER_PARTS,
    BlockAttention,
    FeedForward,
    ModulatedLayer,
    Modulation,
    Surroundings,
    Window,
    plain_norm,
    tabulate,
)

_ROTARY_HEADS = 1
"""The published model was trained with positions in its first head alone."""


class _InputEmbedding(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.parts = (config.mel_dim, config.enc_dim, config.emb_dim, config.enc_emb_dim)
        self.proj = nn.Linear(sum(self.parts), config.hidden_size)
        self.spk_encoder = ECAPA_TimeDelayNet(config)


class DiT(nn.Module):
    """Parameters are named as published. config: transformers' `Qwen2_5OmniDiTConfig`. guidance: 0 for no unguided branch.

    Times are those that `prepare` was given. What they do to each layer is the same for all requests, so it is worked out there,
    once: as released, four weights in ten are for nothing else, and not kept.
    """

    def __init__(self, config: Any, guidance: float = 0.5) -> None:
        super().__init__()
        self.config = config
        self.block_frames: int = config.block_size
        self.branches = 2 if guidance > 0 else 1
        self._guidance = guidance
        self.time_embed = DiTTimestepEmbedding(config.hidden_size)
        self.text_embed = DiTCodecEmbedding(config.num_embeds, config.emb_dim, config.repeats)
        self.input_embed = _InputEmbedding(config)
        self.transformer_blocks = nn.ModuleList(_layer(config, index) for index in range(config.num_hidden_layers))
        self.norm_out = Modulation(config.hidden_size, 2)
        self.proj_out = Linear(config.hidden_size, config.mel_dim)

    def history_shape(self, rows: int) -> tuple[int, ...]:
        """Of `History.kept_RELX`. At the released sizes it takes 27 MiB a row in float32."""
        config = self.config
        back, heads = len(set(config.look_backward_layers)), config.num_attention_heads
        return rows, len(self._table_EPD), back, self.branches, self.block_frames, 2, heads, config.head_dim

    @torch.no_grad()
    def prepare(self, times_E: Tensor) -> None:
        """Called once, with the weights loaded. times_E: of the evaluations, float32, on the weights' device."""
        first, activation, last = self.time_embed.time_mlp
        # The sines need their float32, whatever the dtype of the weights.
        sines_ED = self.time_embed.time_embed(times_E).to(first.weight.dtype)
        time_ED = last(activation(first(sines_ED)))
        table_EPD = tabulate(time_ED, self.transformer_blocks, self.norm_out)  # type: ignore[arg-type]
        self._table_EPD = nn.Buffer(table_EPD, persistent=False)
        exponents_W = torch.arange(0, self.config.head_dim, 2, device=time_ED.device).float() / self.config.head_dim
        frequencies_W = 1.0 / self.config.rope_parameters["rope_theta"] ** exponents_W
        self._frequencies_W = nn.Buffer(frequencies_W, persistent=False)

    def voice(self, speaker_V: Tensor, reference_TM: Tensor) -> Tensor:
        """What conditions the branches, `[G, enc_dim + enc_emb_dim]`, of a voice's embedding and its reference mel spectrogram."""
        references = torch.stack((reference_TM, torch.zeros_like(reference_TM)))[: self.branches]
        speakers = torch.stack((speaker_V, torch.zeros_like(speaker_V)))[: self.branches]
        voice_GV: Tensor = torch.cat((self.input_embed.spk_encoder(references), speakers), 1)
        return voice_GV

    def condition(self, codes_BN: Tensor, voice_BGV: Tensor) -> Tensor:
        """All of the input but the noise, `[B, G, frames, D]`: the same at each evaluation. codes_BN: int64."""
        _, by_reference, by_code, by_speaker = self.input_embed.proj.weight.split(self.input_embed.parts, dim=1)
        codes_BGN = torch.stack((codes_BN, torch.zeros_like(codes_BN)), 1)[:, : self.branches]
        spoken_TD = linear(self.text_embed(codes_BGN.flatten(0, 1)), by_code, self.input_embed.proj.bias)
        voiced_BGD = linear(voice_BGV, torch.cat((by_reference, by_speaker), 1))
        condition_BGTD: Tensor = spoken_TD.unflatten(0, codes_BGN.shape[:2]) + voiced_BGD[:, :, None]
        return condition_BGTD

    def surroundings(self, window: Window) -> Surroundings:
        """What the evaluations of a step share."""
        return Surroundings(window, self._frequencies_W)

    def velocity(self, noisy_BKFM: Tensor, evaluation_B: Tensor, window: Window, around: Surroundings) -> Tensor:
        """Where blocks move, `[B, K, F, M]` in float32, guidance included. evaluation_B: int64, places in the times."""
        parts = self._table_EPD.index_select(0, evaluation_B)[:, :, None, None].unbind(1)
        weight = self.input_embed.proj.weight
        x_GBKFD = linear(noisy_BKFM.to(weight.dtype), weight[:, : self.config.mel_dim]) + window.condition_GBKFD
        for index, layer in enumerate(self.transformer_blocks):
            x_GBKFD = layer(x_GBKFD, parts[LAYER_PARTS * index : LAYER_PARTS * (index + 1)], evaluation_B, around)
        *_, scale, shift = parts
        out_TM = self.proj_out(torch.addcmul(shift, plain_norm(x_GBKFD), scale).flatten(0, 3))
        out_GBKFM: Tensor = out_TM.view(self.branches, *noisy_BKFM.shape).float()
        return out_GBKFM[0] + (out_GBKFM[0] - out_GBKFM[-1]) * self._guidance


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
