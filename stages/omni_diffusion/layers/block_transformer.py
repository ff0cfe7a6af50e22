"""A denoiser of blocks: a transformer whose layers have time-dependent shift, scale and gate (Peebles and Xie, 2023).

Shapes as in `block_attention`; M values of a latent frame; P parts of the modulation of all layers and of the final norm.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from omni_diffusion.kernels.modulated_norm import GatedBranch, modulated_norm
from omni_diffusion.layers.block_attention import AttentionContext, BlockAttention, BlockWindow
from omni_diffusion.layers.block_diffusion import BlockDenoiser

LAYER_PARTS = 6
"""Parts of a layer's modulation: shift, scale and gate, for its attention and for its feed-forward part."""


class Modulation(nn.Module):
    """Parameters of the time-dependent modulation of a norm and of the branch after it: `parts` vectors."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, parts * width)


class FeedForward(nn.Module):
    """first: `[T, D]` to `[T, inner]`. last: `[T, inner]` to `[T, D]`."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        # Numbered as published: between them lie an activation and a dropout.
        self.ff = nn.ModuleDict({"0": first, "3": last})

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.ff["3"](gelu(self.ff["0"](x_TD), approximate="tanh"))
        return y_TD


class ModulatedLayer(nn.Module):
    """Attention of blocks and a feed-forward part, as residual branches."""

    def __init__(self, width: int, attention: BlockAttention, feed_forward: FeedForward) -> None:
        super().__init__()
        self.attn_norm = Modulation(width, LAYER_PARTS)
        self.attn = attention
        self.ff = feed_forward

    def forward(
        self,
        x_UBKFD: Tensor,
        residual: GatedBranch | None,
        parts: Sequence[Tensor],
        evaluation_B: Tensor,
        context: AttentionContext,
    ) -> tuple[Tensor, GatedBranch]:
        """Returns the residual stream `[U, B, K, F, D]` without the output of the feed-forward part, and that output: the next norm
        adds it.

        residual: of the layer before, to be added to `x_UBKFD`. parts: the layer's parts of `tabulate` for each row, `[B, D]`."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = parts
        normed, x_UBKFD = norm_of_rows(x_UBKFD, residual, scale, shift)
        attended = self.attn(normed, evaluation_B, context)
        normed, x_UBKFD = norm_of_rows(x_UBKFD, GatedBranch(attended.flatten(2, 3), gate), mlp_scale, mlp_shift)
        y_TD: Tensor = self.ff(normed.flatten(0, 3))
        return x_UBKFD, GatedBranch(y_TD.view_as(x_UBKFD).flatten(2, 3), mlp_gate)


def norm_of_rows(
    x_UBKFD: Tensor, residual: GatedBranch | None, scale_BD: Tensor, shift_BD: Tensor
) -> tuple[Tensor, Tensor]:
    """`modulated_norm` of rows whose frames are in blocks."""
    normed_UBTD, sum_UBTD = modulated_norm(x_UBKFD.flatten(2, 3), residual, scale_BD, shift_BD)
    return normed_UBTD.view_as(x_UBKFD), sum_UBTD.view_as(x_UBKFD)


def tabulate(time_ED: Tensor, layers: Iterable[ModulatedLayer], last: Modulation) -> Tensor:
    """The modulation by the times, `[E, P, D]`: six parts of each layer, then scale and shift of the last norm. Scales include the
    1.

    time_ED: embedded times. The result is the same for all requests, so the weights for it are freed: a second call fails.
    """
    norms: list[Modulation] = [*(layer.attn_norm for layer in layers), last]
    flat_EX = torch.cat([norm.linear(silu(time_ED)) for norm in norms], 1)
    table_EPD: Tensor = flat_EX.unflatten(1, (-1, time_ED.shape[1]))
    # Published scales are differences from 1.
    table_EPD[:, 1:-2:3] += 1
    table_EPD[:, -2] += 1
    for norm in norms:
        del norm.linear
    return table_EPD


class BlockTransformer(BlockDenoiser):
    """Subclasses implement its inputs. Parameters: `transformer_blocks`, `norm_out`, and `proj_out`, which is `last`: `[T, D]` to
    `[T, M]`.

    layers: with attention of the given heads and head width. guidance: strength of classifier-free guidance (Ho and Salimans,
    2022); 0 for no unguided branch.
    """

    def __init__(
        self,
        layers: Iterable[ModulatedLayer],
        last: nn.Module,
        *,
        width: int,
        heads: int,
        head_dim: int,
        rope_theta: float,
        latent_width: int,
        block: int,
        repeats: int,
        guidance: float,
    ) -> None:
        branches = 2 if guidance > 0 else 1
        super().__init__(width=width, latent_width=latent_width, block=block, repeats=repeats, branches=branches)
        self._heads, self._head_dim, self._rope_theta, self._guidance = heads, head_dim, rope_theta, guidance
        self.transformer_blocks = nn.ModuleList(layers)
        self.norm_out = Modulation(width, 2)
        self.proj_out = last

    @abstractmethod
    def embed_times(self, times_E: Tensor) -> Tensor:
        """`[E, D]` in the weights' dtype. times_E: float32."""

    @abstractmethod
    def embed_latents(self, noisy_BKFM: Tensor) -> Tensor:
        """The part of the input from the latents (float32), `[B, K, F, D]` in the weights' dtype, added to the condition."""

    def history_shape(self, rows: int) -> tuple[int, ...]:
        back = sum(layer.attn.past is not None for layer in self.transformer_blocks)  # type: ignore[union-attr]
        return rows, len(self._table_EPD), back, self.branches, self.block, 2, self._heads, self._head_dim

    @torch.no_grad()
    def prepare(self, times_E: Tensor) -> None:
        table_EPD = tabulate(self.embed_times(times_E), self.transformer_blocks, self.norm_out)  # type: ignore[arg-type]
        self._table_EPD = nn.Buffer(table_EPD, persistent=False)
        exponents_W = torch.arange(0, self._head_dim, 2, device=times_E.device).float() / self._head_dim
        self._frequencies_W = nn.Buffer(1.0 / self._rope_theta**exponents_W, persistent=False)

    def attention_context(self, window: BlockWindow) -> AttentionContext:
        return AttentionContext(window, self._frequencies_W)

    def velocity(
        self, noisy_BKFM: Tensor, evaluation_B: Tensor, window: BlockWindow, context: AttentionContext
    ) -> Tensor:
        parts = self._table_EPD.index_select(0, evaluation_B).unbind(1)
        x_UBKFD = self.embed_latents(noisy_BKFM) + window.condition_UBKFD
        residual: GatedBranch | None = None
        for index, layer in enumerate(self.transformer_blocks):
            own = parts[LAYER_PARTS * index : LAYER_PARTS * (index + 1)]
            x_UBKFD, residual = layer(x_UBKFD, residual, own, evaluation_B, context)
        *_, scale, shift = parts
        normed_UBKFD, _ = norm_of_rows(x_UBKFD, residual, scale, shift)
        out_TM = self.proj_out(normed_UBKFD.flatten(0, 3))
        out_UBKFM: Tensor = out_TM.view(self.branches, *noisy_BKFM.shape).float()
        return out_UBKFM[0] + (out_UBKFM[0] - out_UBKFM[-1]) * self._guidance
