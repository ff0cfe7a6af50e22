"""Pearson's chi-square test of counts against probabilities."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

_LEAST = 5.0
"""Expected number of a cell, below which cells are joined."""


def chance_of(counts: Iterable[NDArray[np.int64]], chances: Iterable[NDArray[np.float64]]) -> float:
    """The p-value of independent experiments together: counts and probabilities of each. 0 for a draw of probability 0; 1 for too
    few draws to test, or with a single possible draw."""
    distances, freedoms = zip(*map(_distance, counts, chances), strict=True)
    halves = torch.tensor([sum(freedoms), sum(distances)], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(halves[0], halves[1])) if sum(freedoms) else 1.0


def _distance(counts_V: NDArray[np.int64], chances_V: NDArray[np.float64]) -> tuple[float, int]:
    """The statistic of one experiment, and its degrees of freedom."""
    if not counts_V.any():
        return 0.0, 0
    if counts_V[chances_V == 0].any():
        return np.inf, 1
    order = np.argsort(chances_V)
    counts, expected = counts_V[order].astype(float), chances_V[order] * counts_V.sum()
    rare = int(np.searchsorted(np.cumsum(expected), _LEAST)) + 1
    counts = np.concatenate([[counts[:rare].sum()], counts[rare:]])
    expected = np.concatenate([[expected[:rare].sum()], expected[rare:]])
    return float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1
