"""Times of dense decoder layers without attention, and of the code predictor, by rows; the gain of each technique of kernels.

    python benchmarks/layers.py [--only "code predictor"]

All layers of a model in one CUDA graph, with an attention that gives the queries back. Columns: plain torch; our kernels, one after
another; overlapping (programmatic dependent launch); and fetching the next weights besides. Medians per layer, for the code
predictor per frame, whose codes are drawn with the published top-k 50 and top-p 0.8.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.arguments import need_cuda
from bench.replay import H200_BANDWIDTH, replayed_seconds
from bench.report import environment, print_facts
from omni.device.kernel_choice import plain_torch
from omni_ar.attention import AttentionFeatures, AttentionMetadata, KVCache
from omni_ar.kernels.norm import residual_sum
from omni_ar.kernels.overlap import kernels_in_turn
from omni_ar.kernels.prefetch import no_prefetch
from omni_ar.kernels.sampling.state import EVERYTHING, Need, SamplingState
from omni_ar.layers import Attention, DecoderConfig, DecoderLayer, GatedMLP, RotaryEmbedding, SparseMoE
from omni_ar.layers.code_predictor import CodePredictor
from omni_ar.model import Codes, DrawCode
from omni_ar.sampling.sampler import draw

# Layers, width, query heads, key heads, feed-forward width.
MODELS = {"Qwen3-0.6B": (28, 1024, 16, 8, 3072), "Qwen3-8B": (12, 4096, 32, 8, 12_288)}
HEAD, EPS, CODES = 128, 1e-6, 2048
DRAWN = Need.CODE_RANDOM | Need.CODE_TOP_K | Need.CODE_TOP_P
ROWS = (1, 2, 4, 8, 16, 32, 64)

Way = Callable[[], AbstractContextManager[None]]


class NoAttention:
    """Returns the queries: the rest of a layer without attention."""

    name = "none"

    def attend(
        self, q_THD: Tensor, cache: KVCache, layer: int, meta: AttentionMetadata, features: AttentionFeatures
    ) -> Tensor:
        return q_THD


class Stack:
    """inner: the feed-forward width, or a function of device and dtype that makes a layer's feed-forward part."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        kv_heads: int,
        inner: int | Callable[..., GatedMLP | SparseMoE],
        *,
        head: int = HEAD,
        qk_norm: bool = True,
        device: str = "cuda",
    ) -> None:
        on: Any = {"device": device, "dtype": torch.bfloat16}
        feed_forward = partial(GatedMLP, width, inner) if isinstance(inner, int) else inner
        made = [
            DecoderLayer(
                Attention(width, heads, kv_heads, head, qk_norm_eps=EPS if qk_norm else None, layer=0, **on),
                feed_forward(**on),
                width=width,
                norm_eps=EPS,
                **on,
            )
            for _ in range(layers)
        ]
        self.layers = nn.ModuleList(made).requires_grad_(False)
        self.rotary = RotaryEmbedding(head, 1e6)
        zeros = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
        self.cache = KVCache.allocate(zeros, 1, 16, 16, kv_heads, head, torch.bfloat16)
        self.width, self.device = width, device
        self.bytes = sum(parameter.nbytes for parameter in self.layers[0].parameters())

    def run(self, x_TD: Tensor) -> Tensor:
        places = torch.arange(x_TD.shape[0], device=self.device)
        meta = AttentionMetadata(places, len(places), places[:, None], places, 1)
        cos, sin = self.rotary(places[None], x_TD.dtype)
        delta_TD: Tensor | None = None
        for layer in self.layers:
            x_TD, delta_TD = layer(x_TD, delta_TD, cos, sin, self.cache, meta, NoAttention())
        assert delta_TD is not None
        return residual_sum(x_TD, delta_TD)

    def call(self, rows: int) -> Callable[[], Tensor]:
        """All layers, once, of inputs that stay the same."""
        x_TD = torch.randn(rows, self.width, device=self.device, dtype=torch.bfloat16)
        return lambda: self.run(x_TD)

    def seconds(self, rows: int) -> float:
        """Seconds of one layer."""
        return replayed_seconds([self.call(rows)]) / len(self.layers)


class Predictor:
    """Frames of the released shape."""

    def __init__(self, device: str = "cuda") -> None:
        config = DecoderConfig(
            width=1024,
            num_layers=5,
            num_heads=16,
            num_kv_heads=8,
            head_dim=HEAD,
            mlp_width=3072,
            max_positions=32_768,
            rope_theta=1e6,
            rms_norm_eps=EPS,
        )
        self.model = CodePredictor(config, CODES, 16, device=torch.device(device), dtype=torch.bfloat16)
        self.model.requires_grad_(False)
        self.device = device
        self.bytes = 15 * sum(parameter.nbytes for parameter in self.model.model.layers.parameters())

    def call(self, rows: int) -> Callable[[], Codes]:
        """A frame, of inputs that stay the same."""
        on: Any = {"device": self.device}
        hidden_RD, code0_RD = torch.randn(2, rows, 1024, dtype=torch.bfloat16, **on)
        code0_R = torch.zeros(rows, dtype=torch.int64, **on)
        draw_code = drawing(rows, CODES, self.device)
        return lambda: self.model.predict(hidden_RD, code0_R, code0_RD, draw_code)

    def seconds(self, rows: int) -> float:
        """Seconds of one frame."""
        return replayed_seconds([self.call(rows)])


def drawing(rows: int, vocabulary: int, device: str) -> DrawCode:
    """Draws codes of `rows` rows as published."""
    rows_R, state = torch.arange(rows, device=device), drawing_state(rows, vocabulary, device)

    def draw_code(logits_RV: Tensor, group: int) -> Tensor:
        return draw(logits_RV, state, rows_R, rows_R, group, EVERYTHING)

    return draw_code


def drawing_state(rows: int, vocabulary: int, device: str) -> SamplingState:
    zeros = lambda size, dtype: torch.zeros(size, dtype=dtype, device=device)  # noqa: E731
    state = SamplingState.allocate(zeros, rows, vocabulary)
    given = {"needs": DRAWN, "code_temperature": 1.0, "code_top_k": 50, "code_top_p": 0.8, "sample_index": 0}
    for name, value in given.items():
        getattr(state, name).fill_(value)
    state.seed.copy_(torch.arange(rows))
    return state


def show(name: str, made: Stack | Predictor, rows: Sequence[int], ways: Mapping[str, Way]) -> None:
    print(f"{name}: floor {made.bytes / H200_BANDWIDTH * 1e6:.2f} us; " + ", ".join(ways))
    for count in rows:
        times = []
        for way in ways.values():
            with way():
                times.append(made.seconds(count))
        print(f"  {count:3d} rows: " + " ".join(f"{time * 1e6:8.2f}" for time in times) + " us", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*MODELS, "code predictor"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="measure these")
    only = parser.parse_args().only
    need_cuda()
    ways: dict[str, Way] = {
        "torch": plain_torch,
        "in turn": kernels_in_turn,
        "overlapping": no_prefetch,
        "fetching": nullcontext,
    }
    for name, shape in MODELS.items():
        if name in only:
            show(name, Stack(*shape), ROWS, ways)
    if "code predictor" in only:
        show("code predictor", Predictor(), (1, 8, 32), ways)
    print_facts(environment())


if __name__ == "__main__":
    main()
