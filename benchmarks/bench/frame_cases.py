"""Decoders of codec frames, of released shapes, without the model around them.

Shape legend: R rows, D width of the layers, E width of a code's embedding, V codes of a group, G positions of a frame.
"""

from typing import Any

import torch
from torch import Tensor

from omni_ar.kernels.frame_decoder import FrameShape
from omni_ar.kernels.sampling.state import COLUMNS, Need, SamplingFlags, SamplingState
from omni_ar.layers import DecoderConfig, FrameLayers, Linear
from omni_ar.sampling.sampler import DrawCodes

_EPS = 1e-6
SHAPES = {
    "talker": FrameShape(
        layers=5, width=1024, heads=16, kv_heads=8, head_dim=128, inner=3072, codes=2048, entry=1024, groups=16,
        qk_norm=True, projects=False,
    ),
    "csm-1b": FrameShape(
        layers=4, width=1024, heads=8, kv_heads=2, head_dim=128, inner=8192, codes=2051, entry=2048, groups=32,
        qk_norm=False, projects=True,
    ),
}  # fmt: skip
DRAWS = SamplingFlags(Need.CODE_RANDOM | Need.CODE_TOP_K | Need.CODE_TOP_P)


class FrameDecoder:
    """Random weights in bfloat16. bytes: of the weights that a frame reads: the layers and the projection in every pass, each head
    once."""

    def __init__(self, shape: FrameShape, device: torch.device) -> None:
        self.shape = shape
        on: Any = {"device": device, "dtype": torch.bfloat16}
        config = DecoderConfig(
            width=shape.width,
            num_layers=shape.layers,
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            mlp_width=shape.inner,
            max_positions=32_768,
            rope_theta=1e6,
            rms_norm_eps=_EPS,
            qk_norm=shape.qk_norm,
        )
        groups = range(shape.groups - 1)
        self.layers: FrameLayers = FrameLayers(config, **on).requires_grad_(False)
        self.heads = [Linear(shape.width, shape.codes, bias=False, **on).requires_grad_(False) for _ in groups]
        self.tables = [torch.randn(shape.codes, shape.entry, **on) for _ in groups]
        self.project: Linear | None = None
        if shape.projects:
            self.project = Linear(shape.entry, shape.width, bias=False, **on).requires_grad_(False)
        each_pass = sum(parameter.nbytes for parameter in self.layers.layers.parameters())
        each_pass += 0 if self.project is None else self.project.weight.nbytes
        self.bytes = len(groups) * (each_pass + self.heads[0].weight.nbytes)

    def predict(self, first_TD: Tensor, sum_RE: Tensor, draw: DrawCodes) -> Tensor:
        """Codes `[R, G - 1]`, as models predict them."""
        wanted = None if self.shape.projects else sum_RE
        heads, project = [head.weight for head in self.heads], None if self.project is None else self.project.weight
        fused = self.layers.run_fused(first_TD, heads, self.tables, draw, project=project, sum_RE=wanted)
        if fused is not None:
            return fused[0]
        embedded = [sum_RE]

        def choose(last_RD: Tensor, group: int) -> Tensor:
            return draw(self.heads[group - 1](last_RD), group)

        def embed(code_R: Tensor, group: int) -> Tensor:
            embedded.append(self.tables[group - 1][code_R])
            entered_RD: Tensor = embedded[-1] if self.project is None else self.project(embedded[-1])
            return entered_RD

        codes = self.layers.run(first_TD, self.shape.groups, choose, embed)
        if wanted is not None:
            embed(codes[-1], self.shape.groups - 1)
            for code_RE in embedded[1:]:
                sum_RE = sum_RE + code_RE
        return torch.stack(codes, 1)


def frames(shape: FrameShape, rows: int, device: torch.device) -> tuple[Tensor, Tensor, DrawCodes]:
    """Arguments of `FrameDecoder.predict`: rows that draw with top-k 50 and top-p 0.8, each with its own seed."""
    made = torch.Generator(device).manual_seed(rows)
    draw: Any = lambda *size: torch.randn(size, generator=made, device=device, dtype=torch.bfloat16)  # noqa: E731
    zeros: Any = lambda size, dtype: torch.zeros(size, dtype=dtype, device=device)  # noqa: E731
    state = SamplingState.allocate(zeros, rows, shape.codes)
    for name, value in {"needs": DRAWS.needs, "code_temperature": 1.0, "code_top_k": 50, "code_top_p": 0.8}.items():
        assert name in COLUMNS
        getattr(state, name).fill_(value)
    rows_R = torch.arange(rows, device=device)
    state.seed.copy_(rows_R)
    return draw(2 * rows, shape.width), draw(rows, shape.entry), DrawCodes(state, rows_R, rows_R, DRAWS)
