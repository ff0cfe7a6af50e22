"""The weights of a frame's decoder, as a table of addresses in device memory: one kernel reads those of every layer and group."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni.device import SyncPoint, may_sync


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of a layer, `[outputs, inputs]`. qkv: of queries, keys and values, one behind the other; gate_up: of gate, then up.
    query_norm, key_norm: None without."""

    norm: Tensor
    qkv: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class FrameWeights:
    """layers: of the decoder. norm: behind the last. heads: `[V, D]` for each group but the first. tables: `[V, E]` for each group
    but the first: embeddings of its codes. project: `[D, E]`, None for E = D. eps: of all norms."""

    layers: Sequence[LayerWeights]
    norm: Tensor
    heads: Sequence[Tensor]
    tables: Sequence[Tensor]
    project: Tensor | None
    eps: float

    def tensors(self) -> list[Tensor | None]:
        """In the order of the table: of each layer, around the layers, and of each group its head and table."""
        listed: list[Tensor | None] = []
        for layer in self.layers:
            listed += [layer.norm, layer.qkv, layer.query_norm, layer.key_norm]
            listed += [layer.out, layer.mlp_norm, layer.gate_up, layer.down]
        listed += [self.norm, self.project]
        for head, table in zip(self.heads, self.tables, strict=True):
            listed += [head, table]
        return listed


def readable(weights: FrameWeights) -> bool:
    """Whether the kernel can read the weights: contiguous, aligned to 16 bytes, and of one dtype on one device."""
    given = [tensor for tensor in weights.tensors() if tensor is not None]
    kinds = {(tensor.dtype, tensor.device) for tensor in given}
    return len(kinds) == 1 and all(tensor.is_contiguous() and not tensor.data_ptr() % 16 for tensor in given)


class AddressTable:
    """The addresses of `FrameWeights`, int64, and the counter of the kernel's barriers. One launch at a time may use them: those of
    one stream. weights: `readable` ones, which the owner keeps."""

    def __init__(self, weights: FrameWeights) -> None:
        device = weights.norm.device
        self._addresses = _addresses(weights)
        with may_sync(SyncPoint.TABLES):
            self.table = torch.tensor(self._addresses, dtype=torch.int64, device=device)
            self.counter = torch.zeros(1, dtype=torch.int32, device=device)

    def holds(self, weights: FrameWeights) -> bool:
        """Whether the weights are still where they were."""
        return _addresses(weights) == self._addresses


def _addresses(weights: FrameWeights) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in weights.tensors()]
