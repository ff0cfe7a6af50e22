"""What a stage of this kind runs, and what it gives. Shape legend: n rows, W width."""

from abc import ABC, abstractmethod

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """An output. first: the number of its first row among the request's. scores: float32 `[n]`."""

    first: int
    scores: NDArray[np.float32]


class ScorerModel(nn.Module, ABC):
    """The contract of models. `Stage.model` names a function `(StageContext) -> ScorerModel`."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Of the rows."""

    @abstractmethod
    def forward(self, rows_nW: Tensor) -> Tensor:
        """Returns `[n]`. Runs inside a device phase: no `.item()`, no `if` on a tensor's values."""


class LinearScorer(ScorerModel):
    """A model to start with: the probability of one class."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)

    @property
    def width(self) -> int:
        return self.linear.in_features

    def forward(self, rows_nW: Tensor) -> Tensor:
        probabilities_n: Tensor = self.linear(rows_nW).sigmoid().flatten()
        return probabilities_n


def build(context: StageContext) -> LinearScorer:
    """Reads `scorer_width` of config.json, and the weights `scorer.weight` and `scorer.bias`."""
    model = LinearScorer(context.checkpoint.config["scorer_width"]).to(context.device.torch_device, context.dtype)
    load_weights(model, context, prefixes={"scorer.": "linear."})
    return model
