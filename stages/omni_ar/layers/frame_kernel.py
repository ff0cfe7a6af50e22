"""The kernel of all passes of a frame (`omni_ar.kernels.frame_decoder`), for the modules that it reads.

Shape legend: R rows, T = 2R, D width, E width of a code's embedding, V codes of a group, G positions of a frame.
"""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn

from omni_ar.kernels.frame_decoder import (
    AddressTable,
    FrameShape,
    FrameWeights,
    LayerWeights,
    chosen,
    decode_frames,
    readable,
)
from omni_ar.kernels.sampling.state import CodeDraws
from omni_ar.layers.decoder import DecoderConfig, DecoderLayer
from omni_ar.layers.linear import GatedMLP, RMSNorm
from omni_ar.model import DrawCode

_Tables = Callable[[Tensor, int], tuple[Tensor, Tensor]]


class FrameKernel:
    """Owns the table of the weights' addresses, which is made at the first frame, before any is captured, and again if weights have
    moved."""

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self._table: AddressTable | None = None

    def run(
        self,
        layers: Iterable[nn.Module],
        norm: RMSNorm,
        heads: Sequence[Tensor],
        tables: Sequence[Tensor],
        project: Tensor | None,
        first_TD: Tensor,
        sum_RE: Tensor | None,
        rotary: _Tables,
        draw: DrawCode,
    ) -> tuple[Tensor, Tensor | None] | None:
        """Arguments and results of `FrameLayers.run_fused`. rotary: cosines and sines of a number of positions."""
        if not isinstance(draw, CodeDraws):
            return None
        shape = self._shape(tables, projects=project is not None)
        settings = chosen(first_TD, shape)
        if settings is None:
            return None
        weights = weights_of(layers, norm, heads, tables, project)
        if weights is None:
            return None
        if self._table is None or not self._table.holds(weights):
            self._table = AddressTable(weights)
        positions = rotary(first_TD, shape.groups)
        return decode_frames(first_TD, sum_RE, positions, shape, self._table, weights.eps, draw, settings)

    def _shape(self, tables: Sequence[Tensor], *, projects: bool) -> FrameShape:
        config = self._config
        return FrameShape(
            layers=config.num_layers,
            width=config.width,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            inner=config.mlp_width,
            codes=tables[0].shape[0],
            entry=tables[0].shape[1],
            groups=len(tables) + 1,
            qk_norm=config.qk_norm,
            projects=projects,
        )


def weights_of(
    layers: Iterable[nn.Module],
    norm: RMSNorm,
    heads: Sequence[Tensor],
    tables: Sequence[Tensor],
    project: Tensor | None,
) -> FrameWeights | None:
    """None for weights that the kernel does not read: biases, experts, and tensors that are not `readable`."""
    parts = [_layer_weights(layer) for layer in layers]
    kept = [part for part in parts if part is not None]
    if len(kept) < len(parts):
        return None
    weights = FrameWeights(kept, norm.weight, heads, tables, project, norm.eps)
    return weights if readable(weights) else None


def _layer_weights(layer: nn.Module) -> LayerWeights | None:
    """None for a layer with biases or experts."""
    if not isinstance(layer, DecoderLayer) or not isinstance(layer.mlp, GatedMLP):
        return None
    attention, mlp = layer.self_attn, layer.mlp
    if any(_biased(linear) for linear in (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)):
        return None
    norms = attention.norms
    return LayerWeights(
        norm=layer.input_layernorm.weight,
        qkv=attention.qkv_proj.weight,
        query_norm=None if norms is None else norms.query_W,
        key_norm=None if norms is None else norms.key_W,
        out=attention.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=mlp.gate_up_proj.weight,
        down=mlp.down_proj.weight,
    )


def _biased(linear: nn.Linear) -> bool:
    bias: Tensor | None = linear.bias
    return bias is not None
