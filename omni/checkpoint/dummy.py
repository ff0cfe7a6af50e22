"""Random weights, created on the device: to measure speed, or to try a pipeline without its weights."""

from collections.abc import Callable

import torch
from torch import nn

Initializer = Callable[[str, torch.Tensor, torch.Generator], None]
"""Fills a parameter in place: (name, parameter, generator on the parameter's device)."""


def default_init(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Matrices from normal(0, 0.02), biases zero, other vectors (norm weights) one."""
    if tensor.dim() > 1:
        tensor.normal_(0.0, 0.02, generator=generator)
    else:
        tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def fill_dummy(module: nn.Module, seed: int, init: Initializer = default_init) -> None:
    """Fills every parameter of `module` in place, on its own device, without a host copy. Buffers stay as they are; parameters on
    the meta device are skipped."""
    generators: dict[torch.device, torch.Generator] = {}
    with torch.inference_mode():
        for name, parameter in module.named_parameters():
            device = parameter.device
            if device.type == "meta":
                continue
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(seed)
            init(name, parameter, generators[device])
