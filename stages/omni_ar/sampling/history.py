"""History of generated tokens."""

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import Need, SamplingFlags, SamplingState


def observe(state: SamplingState, rows_R: Tensor, ids_RK: Tensor, count_R: Tensor, flags: SamplingFlags) -> None:
    """Records the first `count_R` of each row's K ids as generated; nothing changes for a row that counts 0. A phase.

    rows_R: int64, each row once. ids_RK, count_R: int64. flags: at least those of the rows.
    """
    needs = flags.needs
    if not needs & (Need.REPETITION | Need.COUNTS | Need.RECALLS):
        return
    ids_RK = ids_RK.contiguous()
    if needs & (Need.REPETITION | Need.COUNTS):
        place_K = torch.arange(ids_RK.shape[1], device=ids_RK.device)
        width = state.seen.shape[1]
        # Ids that do not count become -1 and go to the last column, so that no row and no id has to be left out.
        counted_RK = torch.where(place_K < count_R[:, None], ids_RK, -1).remainder(width)
        at = torch.add(counted_RK, rows_R[:, None], alpha=width).view(-1)
        if needs & Need.REPETITION:
            state.seen.view(-1).index_fill_(0, at, True)
        if needs & Need.COUNTS:
            state.counts.view(-1).index_add_(0, at, torch.ones_like(at, dtype=torch.int32))
    if needs & Need.RECALLS:
        recent_RL = state.recent.index_select(0, rows_R)
        place_L = torch.arange(recent_RL.shape[1], device=ids_RK.device)
        both_RX = torch.cat([recent_RL, ids_RK], 1)
        state.recent.index_copy_(0, rows_R, both_RX.gather(1, place_L + count_R[:, None]))
