"""Pearson's chi-square test of counts against probabilities."""

import numpy as np
import torch
from numpy.typing import NDArray

_LEAST = 5.0
"""Expected number of a cell, below which cells are joined."""


def chance_of(counts_V: NDArray[np.int64], chances_V: NDArray[np.float64]) -> float:
    """The p-value. 0 if something came that cannot; 1 for too few draws to test, or a single possible id."""
    if counts_V[chances_V == 0].any():
        return 0.0
    order = np.argsort(chances_V)
    counts, expected = counts_V[order].astype(float), chances_V[order] * counts_V.sum()
    rare = int(np.searchsorted(np.cumsum(expected), _LEAST)) + 1
    counts = np.concatenate([[counts[:rare].sum()], counts[rare:]])
    expected = np.concatenate([[expected[:rare].sum()], expected[rare:]])
    if len(counts) < 2:
        return 1.0
    distance, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    halves = torch.tensor([freedom, distance], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(halves[0], halves[1]))
