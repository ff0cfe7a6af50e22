"""Modules of transformers with random weights, and ours with the same."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from omni.checkpoint import Destination, stacked_destinations

Module = TypeVar("Module", bound=nn.Module)


def randomize(module: Module, seed: int) -> Module:
    """Matrices that keep the scale of their inputs, and vectors about one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)
    return module.eval().requires_grad_(False)


@torch.no_grad()
def copy_weights(ours: nn.Module, published: Mapping[str, Tensor]) -> None:
    """As `load_module` does from a checkpoint, which has each matrix on its own: every place is filled, and once."""
    stacked, targets = stacked_destinations(ours), dict(ours.named_parameters())
    filled = dict.fromkeys(targets, 0)
    for name, weight in published.items():
        place = stacked.get(name, Destination(name))
        targets[place.parameter][place.index].copy_(weight)
        filled[place.parameter] += weight.numel()
    assert filled == {name: target.numel() for name, target in targets.items()}
