"""Codec frames to waveform, in chunks of any size whose concatenation equals one whole decode."""

from functools import partial

import torch
from torch import Tensor, nn

from omni.errors import InputError
from omni_qwen3_omni.code2wav.config import Code2WavConfig
from omni_vocoder.layers import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    GatedMLP,
    RMSNorm,
    Serial,
    SnakeBeta,
    SnakeUpsampling,
    WindowShape,
    WindowTransformer,
)
from omni_vocoder.state import StateLayout, StreamState


class StreamingCode2Wav(nn.Module):
    """The vocoder. Parameters are named as in a published checkpoint below `code2wav.`.

    A decode of n frames knows n * samples_per_frame - lookahead samples: the rest depends on the next frame. So a
    stream is short by `lookahead` samples in its first chunk, in step from then on, and has nothing to flush.
    Nothing synchronizes with the device, and the work of a chunk does not grow with the frames before it.
    """

    sample_rate = 24000

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = config.samples_per_frame
        self.lookahead = config.lookahead
        self.min_first_frames = config.min_first_frames
        self.layout = StateLayout()
        self.code_embedding = nn.Embedding(config.codebook_size * config.num_quantizers, config.hidden_size)
        self.pre_transformer = _transformer(self.layout, config)
        self.upsample = _upsample(self.layout, config)
        self.decoder = _decoder(self.layout, config)

    def new_state(self, num_rows: int, device: torch.device | str, dtype: torch.dtype) -> StreamState:
        """Room for `num_rows` streams. dtype: that of the parameters."""
        return StreamState.allocate(num_rows, self.layout.width, device, dtype)

    def reset(self, state: StreamState, rows_B: Tensor) -> None:
        """Blanks rows (int64, on the state's device): they hold nothing of the stream they served."""
        state.reset(rows_B)

    @torch.no_grad()
    def forward(self, codes_BQN: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        """Decodes the next N frames of B streams.

        codes_BQN: int64, a code per quantizer and frame. rows_B: int64, distinct rows of `state`. first: these frames
        start their streams, whatever the rows held. Returns samples in [-1, 1], `[B, S]`, in the parameters' dtype:
        S = N * samples_per_frame, in a first chunk `lookahead` fewer, which may be 0.
        Raises InputError if Q is not num_quantizers, or if N is below 1, in a first chunk below `min_first_frames`.
        """
        self._check(codes_BQN, first)
        chunk = state.load(rows_B, first)
        signal_BCT = self.pre_transformer(self._embed(codes_BQN), chunk).transpose(1, 2)
        wav_B1S: Tensor = self.decoder(self.upsample(signal_BCT, chunk), chunk)
        state.store(rows_B, chunk, frames=codes_BQN.shape[2])
        return wav_B1S.squeeze(1).clamp(-1, 1)

    def _embed(self, codes_BQN: Tensor) -> Tensor:
        """Mean over quantizers, `[B, N, D]`; each quantizer has its own stretch of the table."""
        quantizer_Q1 = torch.arange(codes_BQN.shape[1], device=codes_BQN.device).unsqueeze(1)
        embedded_BQND: Tensor = self.code_embedding(codes_BQN + quantizer_Q1 * self.config.codebook_size)
        return embedded_BQND.mean(1)

    def _check(self, codes_BQN: Tensor, first: bool) -> None:
        _, quantizers, frames = codes_BQN.shape
        if quantizers != self.config.num_quantizers:
            expected = self.config.num_quantizers
            raise InputError("codes", f"have {quantizers} codes per frame", f"give {expected}, one per quantizer")
        fewest = self.min_first_frames if first else 1
        if frames < fewest:
            raise InputError("codes", f"have {frames} frames", f"give at least {fewest} in this chunk")


def _transformer(layout: StateLayout, config: Code2WavConfig) -> WindowTransformer:
    width = config.hidden_size
    shape = WindowShape(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.attention_head_dim,
        window=config.sliding_window,
        rope_theta=config.rope_theta,
        bias=config.attention_bias,
    )
    norm, mlp = partial(RMSNorm, width, config.rms_norm_eps), partial(GatedMLP, width, config.intermediate_size)
    return WindowTransformer(layout, shape, config.num_hidden_layers, norm=norm, mlp=mlp, final_norm=True)


def _upsample(layout: StateLayout, config: Code2WavConfig) -> Serial:
    width = config.hidden_size
    stretch = (nn.ConvTranspose1d(width, width, ratio, stride=ratio) for ratio in config.upsampling_ratios)
    return Serial(Serial([CausalTransposedConv(layout, conv), ConvNeXtBlock(layout, width)]) for conv in stretch)


def _decoder(layout: StateLayout, config: Code2WavConfig) -> Serial:
    channels = [config.decoder_dim // 2**level for level in range(len(config.upsample_rates) + 1)]
    inlet = CausalConv(layout, nn.Conv1d(config.hidden_size, channels[0], 7))
    blocks = [
        SnakeUpsampling(layout, channels[level], channels[level + 1], rate)
        for level, rate in enumerate(config.upsample_rates)
    ]
    outlet = CausalConv(layout, nn.Conv1d(channels[-1], 1, 7))
    return Serial([inlet, *blocks, SnakeBeta(channels[-1]), outlet])
