"""A tiny encoder whose batches are recorded."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from omni_encoder.model import EncoderModel, SampleItem

POISON = -1.0
"""A feature that `Tower` cannot stand."""


class Tower(EncoderModel):
    """Running sums and doubled features, computed for the whole batch at once; refuses `POISON`."""

    host_inputs: ClassVar[frozenset[str]] = frozenset({"grid"})

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Mapping[str, Tensor]]:
        self.batches.append(len(items))
        if any(bool((item["x"] == POISON).any()) for item in items):
            raise ValueError("poisoned")
        lengths = [item["x"].shape[0] for item in items]
        doubled = torch.cat([item["x"] for item in items]) * 2
        return [
            {"sum": item["x"].cumsum(0), "doubled": part}
            for item, part in zip(items, doubled.split(lengths), strict=True)
        ]

    def largest_item(self, length: int) -> SampleItem:
        return SampleItem(length, {"x": torch.zeros(length, 4), "grid": torch.zeros(3, dtype=torch.int64)})
