"""Sampling at the positions of drafts: the state of each position is that of its row after the drafts before it.

Shape legend: R rows, J positions of a row, K = J - 1 drafts, X = R * J positions, V vocabulary.
"""

from dataclasses import fields, replace

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import Need, SamplingState
from omni_ar.sampling.edits import StepEdits

_READ_BY = {
    "seen": Need.REPETITION,
    "counts": Need.PENALTY | Need.COUNTS,
    "recent": Need.BAD_WORDS | Need.RECALLS,
    "forbidden": Need.FORBIDDEN,
    "bias_ids": Need.BIAS,
    "biases": Need.BIAS,
    "bad_words": Need.BAD_WORDS,
}
"""The large fields of `SamplingState`, and the needs of rows that read them."""


def spread(rows_R: Tensor, positions: int) -> Tensor:
    """Repeats each entry for the row's positions, `[X]`."""
    return rows_R[:, None].expand(-1, positions).flatten()


def position_state(state: SamplingState, rows_R: Tensor, drafts_RK: Tensor, needs: int) -> SamplingState:
    """A state with a row for each position. needs: a superset of the rows' needs; fields that none of them reads are left
    unchanged."""
    positions, vocab = 1 + drafts_RK.shape[1], state.forbidden.shape[1]
    rows_X = spread(rows_R, positions)
    tensors = {
        each.name: getattr(state, each.name).index_select(0, rows_X)
        for each in fields(state)
        if each.name not in ("params", "uses") and (each.name not in _READ_BY or needs & _READ_BY[each.name])
    }
    # Ids that the vocabulary lacks do not count.
    counted_RK = drafts_RK.where((drafts_RK >= 0) & (drafts_RK < vocab), vocab)
    for index in range(positions - 1):
        later_RJ1 = counted_RK[:, index, None, None].expand(-1, positions - 1 - index, 1)
        if needs & Need.REPETITION:
            tensors["seen"].view(-1, positions, vocab + 1)[:, index + 1 :].scatter_(2, later_RJ1, True)
        if needs & Need.COUNTS:
            ones = torch.ones_like(later_RJ1, dtype=torch.int32)
            tensors["counts"].view(-1, positions, vocab + 1)[:, index + 1 :].scatter_add_(2, later_RJ1, ones)
    if needs & Need.RECALLS:
        recent_RL = state.recent.index_select(0, rows_R)
        windows = torch.cat([recent_RL, drafts_RK], 1).unfold(1, recent_RL.shape[1], 1)
        tensors["recent"] = windows.flatten(0, 1)
    return replace(
        state,
        **tensors,
        params={name: params.index_select(0, rows_X) for name, params in state.params.items()},
        uses={name: uses.index_select(0, rows_X) for name, uses in state.uses.items()},
    )


def position_edits(edits: StepEdits, positions: int) -> StepEdits:
    """The edits, at the first positions of their rows: rows with edits have no drafts."""
    return edits._replace(indices_g=edits.indices_g * positions, pair_indices_p=edits.pair_indices_p * positions)
