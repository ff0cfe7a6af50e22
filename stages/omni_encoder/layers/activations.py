"""Activation functions by the names that published configs use."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F


def gelu_new(x: Tensor) -> Tensor:
    """GELU approximated by tanh (Hendrycks and Gimpel, 2016), each operation rounded to the dtype of `x`."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x: Tensor) -> Tensor:
    """GELU approximated by the logistic function (Hendrycks and Gimpel, 2016)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}
