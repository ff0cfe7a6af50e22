"""A transformer of modulated layers as a denoiser of blocks. Shapes as in `block_attention`; M values of a latent frame."""

from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from omni_diffusion.layers.block_attention import BlockWindow, Surroundings
from omni_diffusion.layers.block_diffusion import BlockDenoiser
from omni_diffusion.layers.modulated import LAYER_PARTS, ModulatedLayer, Modulation, plain_norm, tabulate


class BlockTransformer(BlockDenoiser):
    """Subclasses implement its inputs. Parameters: `transformer_blocks`, `norm_out`, and `proj_out`, which is `last`.

    `prepare` receives the times and computes their modulation of each layer once, since it is the same for all
    requests. The weights for it are not kept.

    layers: layers whose attention has the given heads and head width. last: `[T, D]` to `[T, M]`. guidance: strength of
    classifier-free guidance (Ho and Salimans, 2022); 0 for no unguided branch.
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
        """The part of the input from the latents, in float32, which is added to the condition, `[B, K, F, D]` in the
        weights' dtype."""

    def history_shape(self, rows: int) -> tuple[int, ...]:
        back = sum(layer.attn.past is not None for layer in self.transformer_blocks)  # type: ignore[union-attr]
        return rows, len(self._table_EPD), back, self.branches, self.block, 2, self._heads, self._head_dim

    @torch.no_grad()
    def prepare(self, times_E: Tensor) -> None:
        table_EPD = tabulate(self.embed_times(times_E), self.transformer_blocks, self.norm_out)  # type: ignore[arg-type]
        self._table_EPD = nn.Buffer(table_EPD, persistent=False)
        exponents_W = torch.arange(0, self._head_dim, 2, device=times_E.device).float() / self._head_dim
        self._frequencies_W = nn.Buffer(1.0 / self._rope_theta**exponents_W, persistent=False)

    def surroundings(self, window: BlockWindow) -> Surroundings:
        return Surroundings(window, self._frequencies_W)

    def velocity(self, noisy_BKFM: Tensor, evaluation_B: Tensor, window: BlockWindow, around: Surroundings) -> Tensor:
        parts = self._table_EPD.index_select(0, evaluation_B)[:, :, None, None].unbind(1)
        x_UBKFD = self.embed_latents(noisy_BKFM) + window.condition_UBKFD
        for index, layer in enumerate(self.transformer_blocks):
            x_UBKFD = layer(x_UBKFD, parts[LAYER_PARTS * index : LAYER_PARTS * (index + 1)], evaluation_B, around)
        *_, scale, shift = parts
        out_TM = self.proj_out(torch.addcmul(shift, plain_norm(x_UBKFD), scale).flatten(0, 3))
        out_UBKFM: Tensor = out_TM.view(self.branches, *noisy_BKFM.shape).float()
        return out_UBKFM[0] + (out_UBKFM[0] - out_UBKFM[-1]) * self._guidance
