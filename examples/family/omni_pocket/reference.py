"""The model in plain torch, everything recomputed for each token: the reference of the tests.

Shape legend: T tokens, D width, H heads, K key heads, W head width, F = W / 2 frequencies.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from omni.checkpoint import Checkpoint
from omni_pocket.config import read_config


class Reference:
    """One request at a time, greedy, in float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        self._config = read_config(Checkpoint(folder))
        self._weights = load_file(folder / "model.safetensors")

    @torch.no_grad()
    def __call__(self, prompt: Sequence[int], count: int) -> Sequence[int]:
        """The next `count` ids. An end token ends nothing here."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self._logits(ids).argmax()))
        return ids[len(prompt) :]

    def _logits(self, ids: list[int]) -> Tensor:
        """Logits of the last token."""
        x_TD = self._weights["model.embed_tokens.weight"][ids] * self._config.hidden_size**0.5
        for layer in range(self._config.num_hidden_layers):
            part = f"model.layers.{layer}."
            x_TD = x_TD + self._attention(self._norm(x_TD, f"{part}input_layernorm"), f"{part}self_attn.")
            x_TD = x_TD + self._mlp(self._norm(x_TD, f"{part}post_attention_layernorm"), f"{part}mlp.")
        return self._linear(self._norm(x_TD[-1:], "model.norm"), "lm_head")

    def _attention(self, x_TD: Tensor, part: str) -> Tensor:
        q_HTW, k_KTW, v_KTW = (
            self._linear(x_TD, f"{part}{name}_proj").unflatten(1, (-1, self._config.head_dim)).transpose(0, 1)
            for name in "qkv"
        )
        out_HTW = F.scaled_dot_product_attention(
            self._rotated(q_HTW), self._rotated(k_KTW), v_KTW, is_causal=True, enable_gqa=True
        )
        return self._linear(out_HTW.transpose(0, 1).flatten(1), f"{part}o_proj")

    def _rotated(self, x_HTW: Tensor) -> Tensor:
        width = self._config.head_dim
        frequency_F = self._config.rope_theta ** -(torch.arange(0, width, 2) / width)
        angle_TW = torch.outer(torch.arange(x_HTW.shape[1]).float(), frequency_F).repeat(1, 2)
        first_HTF, second_HTF = x_HTW.chunk(2, -1)
        return x_HTW * angle_TW.cos() + torch.cat([-second_HTF, first_HTF], -1) * angle_TW.sin()

    def _mlp(self, x_TD: Tensor, part: str) -> Tensor:
        gate, up = (self._linear(x_TD, f"{part}{name}_proj") for name in ("gate", "up"))
        return self._linear(F.silu(gate) * up, f"{part}down_proj")

    def _norm(self, x_TD: Tensor, name: str) -> Tensor:
        return F.rms_norm(x_TD, x_TD.shape[-1:], self._weights[f"{name}.weight"], self._config.rms_norm_eps)

    def _linear(self, x_TD: Tensor, name: str) -> Tensor:
        return F.linear(x_TD, self._weights[f"{name}.weight"])
