"""Log-probabilities."""

import torch
from torch import Tensor


def top_logprobs(logits_RV: Tensor, ids_R: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row's id and the k most likely: ids int64 `[R, 1 + k]`, log-probabilities fp32 `[R, 1 + k]`, ranks of
    the rows' ids int64 `[R]`.

    logits_RV: fp32, the model's logits. ids_R: int64. The row's id comes first, then the k most likely in descending
    order, which may include it. A rank is the number of more likely ids, plus 1.
    """
    logprobs_RV = logits_RV.log_softmax(-1)
    top = logprobs_RV.topk(k, dim=-1)
    own_R1 = logprobs_RV.gather(1, ids_R[:, None])
    ranks_R = (logprobs_RV > own_R1).sum(-1) + 1
    return torch.cat([ids_R[:, None], top.indices], 1), torch.cat([own_R1, top.values], 1), ranks_R
