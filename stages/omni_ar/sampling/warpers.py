"""Warpers narrow the distribution of a draw, by row, with the same bits as transformers where it has them. Order: temperature,
top-n-sigma, top-k, top-p, min-p. Functions return new tensors. Logits are fp32. Shape legend: R rows, V vocabulary."""

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import Need, SamplingState
from omni_ar.sampling.penalties import MASKED


def apply_temperature(logits_RV: Tensor, temperature_R: Tensor) -> Tensor:
    """Divides by the row's temperature. Rows of temperature 0 are greedy and keep their logits."""
    return logits_RV / torch.where(temperature_R == 0, 1, temperature_R)[:, None]


def keep_top(
    logits_RV: Tensor,
    top_k_R: Tensor | None,
    top_p_R: Tensor | None,
    min_p_R: Tensor | None = None,
    top_n_sigma_R: Tensor | None = None,
) -> Tensor:
    """Masks, in this order: ids more than `top_n_sigma` standard deviations below the largest logit; all but the row's `top_k` most
    likely; all but the fewest that reach `top_p`; and ids less than `min_p` times as likely as the most likely. Each filter sees
    only the ids that the earlier ones keep.

    top_k_R: int64; ids that tie with the last one kept are kept too; 0 is off. top_p_R: 1 is off; float64 gives transformers' exact
    cut, which rounds `1 - top_p` once. min_p_R, top_n_sigma_R: fp32; 0 is off. None is off for every row, and cheaper.
    """
    if top_n_sigma_R is not None:
        logits_RV = logits_RV.masked_fill(_below_deviations(logits_RV, top_n_sigma_R), MASKED)
    if top_k_R is not None:
        logits_RV = logits_RV.masked_fill(logits_RV < _kth_largest(logits_RV, top_k_R), MASKED)
    if top_p_R is not None:
        logits_RV = logits_RV.masked_fill(_outside_nucleus(logits_RV, top_p_R), MASKED)
    if min_p_R is not None:
        logits_RV = logits_RV.masked_fill(_too_unlikely(logits_RV, min_p_R), MASKED)
    return logits_RV


def warp_tokens(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, needs: int) -> Tensor:
    """Temperature, then `keep_top`, by the rows' parameters for tokens. needs: a superset of the rows' needs."""
    return keep_top(
        apply_temperature(logits_RV, state.temperature.index_select(0, rows_R)),
        state.top_k.index_select(0, rows_R) if needs & Need.TOP_K else None,
        state.top_p.index_select(0, rows_R) if needs & Need.TOP_P else None,
        state.min_p.index_select(0, rows_R) if needs & Need.MIN_P else None,
        state.top_n_sigma.index_select(0, rows_R) if needs & Need.TOP_N_SIGMA else None,
    )


def warp_codes(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, needs: int) -> Tensor:
    """As `warp_tokens`, by the rows' parameters for the codes of a frame after the first."""
    return keep_top(
        apply_temperature(logits_RV, state.code_temperature.index_select(0, rows_R)),
        state.code_top_k.index_select(0, rows_R) if needs & Need.CODE_TOP_K else None,
        state.code_top_p.index_select(0, rows_R) if needs & Need.CODE_TOP_P else None,
    )


def _below_deviations(logits_RV: Tensor, top_n_sigma_R: Tensor) -> Tensor:
    """Whether a logit is more than `top_n_sigma` standard deviations below the row's largest, bool `[R, V]`: the population
    standard deviation of the logits that are not masked, as in llama.cpp. Scaling logits by a temperature scales both sides.
    Source: Tang et al., 2024, "Top-n-sigma: Not All Logits Are You Need", arXiv:2411.07641;
    https://github.com/ggml-org/llama.cpp/pull/11223."""
    masked_RV = logits_RV == MASKED
    count_R1 = (~masked_RV).sum(-1, keepdim=True).clamp(min=1)
    mean_R1 = logits_RV.masked_fill(masked_RV, 0).sum(-1, keepdim=True) / count_R1
    apart_RV = (logits_RV - mean_R1).masked_fill(masked_RV, 0)
    # Squares of logits as large as `MAX_LOGIT` would overflow.
    scale_R1 = apart_RV.abs().amax(-1, keepdim=True).clamp(min=1)
    deviation_R1 = scale_R1 * ((apart_RV / scale_R1).square().sum(-1, keepdim=True) / count_R1).sqrt()
    threshold_R1 = logits_RV.amax(-1, keepdim=True) - top_n_sigma_R[:, None] * deviation_R1
    return (logits_RV < threshold_R1) & (top_n_sigma_R > 0)[:, None]


def _kth_largest(logits_RV: Tensor, top_k_R: Tensor) -> Tensor:
    """The smallest logit that top-k keeps, `[R, 1]`."""
    vocab = logits_RV.shape[1]
    count_R = torch.where(top_k_R == 0, vocab, top_k_R.clamp(max=vocab))
    return logits_RV.sort(dim=-1).values.gather(1, (vocab - count_R)[:, None])


def _outside_nucleus(logits_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Whether an id is not among the fewest whose probabilities reach the row's `top_p`, bool `[R, V]`."""
    # The sort decides which of several equal logits is dropped. To agree with transformers it must be the same sort of
    # the same values: neither a stable sort nor the one that found the k-th largest.
    sorted_RV, id_RV = logits_RV.sort(dim=-1)
    tail_R = (1 - top_p_R.double()).float()
    removed_RV = sorted_RV.softmax(-1).cumsum(-1) <= tail_R[:, None]
    removed_RV[:, -1] = False
    removed_RV &= (top_p_R < 1)[:, None]
    return torch.empty_like(removed_RV).scatter_(1, id_RV, removed_RV)


def _too_unlikely(logits_RV: Tensor, min_p_R: Tensor) -> Tensor:
    """Whether an id is less than `min_p` times as likely as the most likely, bool `[R, V]`."""
    probability_RV = logits_RV.softmax(-1)
    return probability_RV < probability_RV.amax(-1, keepdim=True) * min_p_R[:, None]
