"""`propose_ngrams` in plain torch."""

import torch
from torch import Tensor


def propose_ngrams(
    text_NL: Tensor,
    rows_R: Tensor,
    length_N: Tensor,
    fewest: int,
    most: int,
    vocab: int,
    drafts_NK: Tensor,
    proposed_N: Tensor,
) -> None:
    text_RL = text_NL.index_select(0, rows_R)
    known_R1 = length_N.index_select(0, rows_R)[:, None] + 1
    width, place_L = text_RL.shape[1], torch.arange(text_RL.shape[1], device=rows_R.device)
    matched_RL = torch.zeros_like(text_RL, dtype=torch.int64)
    matching_RL = place_L < known_R1
    for back in range(1, most + 1):
        newest_R1 = text_RL.gather(1, (known_R1 - back).clamp(min=0))
        before_RL = text_RL.roll(back, 1)
        matching_RL = matching_RL & (place_L >= back) & (before_RL == newest_R1)
        matched_RL = matched_RL + matching_RL
    best_R = (matched_RL * width + place_L).where(matched_RL >= fewest, -1).amax(1)
    place_R1 = (best_R.clamp(min=0) % width)[:, None]
    index_K = torch.arange(drafts_NK.shape[1], device=rows_R.device)
    at_RK = place_R1 + index_K % (known_R1 - place_R1).clamp(min=1)
    drafts_RK = text_RL.gather(1, at_RK.clamp(max=width - 1)).long()
    is_id_RK = (drafts_RK >= 0) & (drafts_RK < vocab)
    drafts_NK.index_copy_(0, rows_R, drafts_RK)
    proposed_N.index_copy_(0, rows_R, is_id_RK.long().cumprod(1).sum(1) * (best_R >= 0))
