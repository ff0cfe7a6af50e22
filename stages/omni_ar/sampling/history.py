"""What sampling remembers of generated tokens."""

import torch
from torch import Tensor

from omni_ar.sampling.flags import SamplingFlags
from omni_ar.sampling.state import SamplingState


def observe(state: SamplingState, rows_R: Tensor, ids_RK: Tensor, count_R: Tensor, flags: SamplingFlags) -> None:
    """Takes the first `count_R` of each row's K ids as generated; of a row that counts 0 nothing changes. A phase.

    rows_R: int64, each row once. ids_RK, count_R: int64. flags: at least what the rows need.
    """
    if not (flags.any_repetition or flags.counts or flags.recalls):
        return
    ids_RK = ids_RK.contiguous()
    if flags.any_repetition or flags.counts:
        place_K = torch.arange(ids_RK.shape[1], device=ids_RK.device)
        width = state.seen.shape[1]
        # What does not count is -1 and goes to the last column, so that no row and no id has to be left out.
        counted_RK = torch.where(place_K < count_R[:, None], ids_RK, -1).remainder(width)
        at = torch.add(counted_RK, rows_R[:, None], alpha=width).view(-1)
        if flags.any_repetition:
            state.seen.view(-1).index_fill_(0, at, True)
        if flags.counts:
            state.counts.view(-1).index_add_(0, at, torch.ones_like(at, dtype=torch.int32))
    if flags.recalls:
        recent_RL = state.recent.index_select(0, rows_R)
        place_L = torch.arange(recent_RL.shape[1], device=ids_RK.device)
        both_RX = torch.cat([recent_RL, ids_RK], 1)
        state.recent.index_copy_(0, rows_R, both_RX.gather(1, place_L + count_R[:, None]))
