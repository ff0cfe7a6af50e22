"""Parts of models whose linear maps are tuned where they are used, and what they look up in the tables."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol
from unittest.mock import patch

import beside  # noqa: F401 - for `layers`
import torch
from torch import Tensor

import omni_ar.kernels.linear as operation
from layers import MODELS, Predictor, Stack, drawing
from omni_ar.kernels.linear.settings import LinearSettings, key, settings
from omni_ar.layers import DecoderConfig, SharedExpertMoE, SparseMoE
from omni_ar.layers.rotary import FrequencyScaling
from omni_ar.model import Codes


class LayeredPart(Protocol):
    def call(self, rows: int) -> Callable[[], object]:
        """All of it, once, of inputs that stay the same."""


class DepthFrames:
    """Frames of CSM-1B's depth decoder."""

    def __init__(self, device: str = "cuda") -> None:
        # With them comes transformers, which takes seconds in each process that compiles.
        from omni_csm.config import CsmConfig
        from omni_csm.depth import DepthDecoder
        from omni_vocoder.layers import WindowShape

        config = CsmConfig(
            backbone=_csm_decoder(width=2048, num_layers=16, num_heads=32, head_dim=64, num_kv_heads=8),
            depth=_csm_decoder(width=1024, num_layers=4, num_heads=8, head_dim=128, num_kv_heads=2),
            text_vocab_size=1,
            vocab_size=2051,
            num_groups=32,
            tied=True,
            audio_token=0,
            audio_eos=0,
            codec_eos=0,
            mimi=None,
            mimi_window=WindowShape(width=512, heads=8, kv_heads=8, head_dim=64, window=250, rope_theta=1e4),
        )
        self.model = DepthDecoder(config, device=torch.device(device), dtype=torch.bfloat16).requires_grad_(False)
        self.model.codebooks_head.normal_(std=0.02)
        self.model.turn_heads()
        self.device = device

    def call(self, rows: int) -> Callable[[], Codes]:
        hidden_RB = torch.randn(rows, 2048, dtype=torch.bfloat16, device=self.device)
        code0_R = torch.zeros(rows, dtype=torch.int64, device=self.device)
        draw_code = drawing(rows, 2051, self.device)
        return lambda: self.model.predict(hidden_RB, code0_R, self.model.embed_tokens, draw_code)


def _csm_decoder(*, width: int, num_layers: int, num_heads: int, head_dim: int, num_kv_heads: int) -> DecoderConfig:
    return DecoderConfig(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_width=8192,
        max_positions=2048,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
        qk_norm=False,
        rope_scaling=FrequencyScaling(factor=32.0, slow_turns=1.0, fast_turns=4.0, trained_positions=8192),
    )


_THINKER_MOE = partial(SparseMoE, 2048, 768, 128, 8, True)
_TALKER_MOE = partial(SharedExpertMoE, 1024, 384, 128, 6, True, 768)


class LayerTarget(NamedTuple):
    make: Callable[[str], LayeredPart]
    """On a device."""
    rows: tuple[int, ...]
    """That it is tuned for."""


TARGETS: Mapping[str, LayerTarget] = {
    "code-predictor": LayerTarget(Predictor, (4, 8, 16, 32, 1)),
    "qwen3-0.6b": LayerTarget(lambda device: Stack(*MODELS["Qwen3-0.6B"], device=device), (8, 32)),
    "csm-depth": LayerTarget(DepthFrames, (1, 16)),
    "csm-backbone": LayerTarget(
        lambda device: Stack(16, 2048, 32, 8, 8192, head=64, qk_norm=False, device=device), (1, 16)
    ),
    # Some have fewer layers than the model, since all layers have the same shapes.
    "qwen3-omni-talker": LayerTarget(lambda device: Stack(20, 1024, 16, 2, _TALKER_MOE, device=device), (1, 8, 16, 32)),
    "qwen3-omni-thinker": LayerTarget(lambda device: Stack(8, 2048, 32, 4, _THINKER_MOE, device=device), (1, 16, 32)),
    "qwen2.5-7b-talker": LayerTarget(
        lambda device: Stack(24, 896, 12, 4, 18_944, qk_norm=False, device=device), (1, 16)
    ),
    "qwen2.5-7b-thinker": LayerTarget(
        lambda device: Stack(8, 3584, 28, 4, 18_944, qk_norm=False, device=device), (1, 16)
    ),
    "qwen3-8b": LayerTarget(lambda device: Stack(*MODELS["Qwen3-8B"], device=device), (1, 8)),
}


@dataclass
class Lookups:
    """Of one call, for one number of rows. bytes: of the weights, summed over the lookups of a key. before: what is looked up right
    before a key."""

    bytes: Counter[str] = field(default_factory=Counter)
    before: dict[str, Counter[str]] = field(default_factory=dict)


def lookups(call: Callable[[], object], rows: int) -> Lookups:
    """Runs `call`."""
    asked: list[tuple[str, int]] = []
    found = Lookups()

    def record(kind: str, x_TD: Tensor, weight_ND: Tensor) -> LinearSettings | None:
        # A first pass of more rows has settings of its own.
        if x_TD.shape[0] == rows:
            asked.append((key(kind, weight_ND), weight_ND.nbytes))
        return settings(kind, x_TD, weight_ND)

    with patch.object(operation, "settings", record):
        call()
    for name, size in asked:
        found.bytes[name] += size
        found.before.setdefault(name, Counter())
    for (first, _), (second, _) in pairwise(asked):
        found.before[second][first] += 1
    return found
