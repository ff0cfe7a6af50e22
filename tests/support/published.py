"""Published weights of a module that keeps some of them stacked."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from omni.checkpoint import stacked_destinations


def load_published(module: nn.Module, published: Mapping[str, Tensor]) -> None:
    """Fills all parameters of `module` from those of the published module, which has each matrix on its own."""
    stacked = stacked_destinations(module)
    targets = dict(module.named_parameters())
    filled = dict.fromkeys(targets, 0)
    with torch.no_grad():
        for name, weight in published.items():
            parameter, index = (stacked[name].parameter, stacked[name].index) if name in stacked else (name, ())
            targets[parameter][index].copy_(weight)
            filled[parameter] += weight.numel()
    assert filled == {name: target.numel() for name, target in targets.items()}
