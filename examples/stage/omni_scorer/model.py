"""Models and outputs of this stage kind. Shape legend: n rows, W width."""

from abc import ABC, abstractmethod

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from omni.stage import StageContext


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """An output. first: the number of its first row among the request's. scores: float32 `[n]`."""

    first: int
    scores: NDArray[np.float32]


class ScorerModel(nn.Module, ABC):
    """The contract of models. `Stage.model` names a function `(StageContext) -> ScorerModel`."""

    @abstractmethod
    def forward(self, rows_nW: Tensor) -> Tensor:
        """Returns `[n]`. Runs inside a device phase: no `.item()`, no `if` on a tensor's values."""


class RootMeanSquare(ScorerModel):
    """A model to start with: it has no weights."""

    def forward(self, rows_nW: Tensor) -> Tensor:
        return rows_nW.float().square().mean(1).sqrt()


def build(context: StageContext) -> RootMeanSquare:
    """On the context's device, in its dtype. A model with weights loads them here: `omni.checkpoint.load_weights`."""
    return RootMeanSquare().to(context.device.torch_device, context.dtype)
