"""What one row's parameters make of logits, by transformers' own processors and warpers, and by definition where it has none."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omni.sampling import SamplingParams


def reference_logits(logits_V: Tensor, p: SamplingParams, prompt: Sequence[int], outputs: Sequence[int]) -> Tensor:
    """fp32 `[V]`: what the rules of a row make of its logits after these tokens."""
    ids = torch.tensor([[*prompt, *outputs]], dtype=torch.int64)
    scores = logits_V[None]
    if p.repetition_penalty is not None and p.repetition_penalty != 1:
        scores = _applied(LogitsProcessorList([RepetitionPenaltyLogitsProcessor(p.repetition_penalty)]), ids, scores)
    scores = count_penalties(scores[0], outputs, p.frequency_penalty or 0, p.presence_penalty or 0)[None]
    processors = LogitsProcessorList()
    if p.logit_bias:
        # A dict, as lists may not name id 0 there.
        bias: Any = {(i,): float(b) for i, b in p.logit_bias.items()}
        processors.append(SequenceBiasLogitsProcessor(bias))
    if p.suppress_token_ids:
        processors.append(SuppressTokensLogitsProcessor(list(p.suppress_token_ids)))
    if p.allowed_token_ids:
        allowed = list(p.allowed_token_ids)
        processors.append(PrefixConstrainedLogitsProcessor(lambda batch, ids: allowed, 1))
    if p.bad_words_ids:
        processors.append(NoBadWordsLogitsProcessor([list(word) for word in p.bad_words_ids]))
    if p.min_tokens and p.stop_token_ids:
        stops = list(p.stop_token_ids)
        processors.append(MinNewTokensLengthLogitsProcessor(len(prompt), p.min_tokens, stops))
    return _applied(processors, ids, scores)[0]


def count_penalties(logits_V: Tensor, outputs: Sequence[int], frequency: float, presence: float) -> Tensor:
    """By definition, in float64, rounded once."""
    counts = np.bincount(np.array(outputs, np.int64), minlength=len(logits_V))
    return torch.from_numpy(logits_V.double().numpy() - frequency * counts - presence * (counts > 0)).float()


def reference_warp(logits_V: Tensor, p: SamplingParams) -> Tensor:
    """fp32 `[V]`: what transformers' warpers leave for a row that samples, and top-n-sigma by definition, in float64."""
    assert p.temperature
    if p.top_n_sigma:
        logits = logits_V.double().numpy()
        threshold = logits.max() - p.top_n_sigma * logits[np.isfinite(logits)].std()
        logits_V = logits_V.masked_fill(torch.from_numpy(logits < threshold), -np.inf)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(p.temperature)])
    if p.top_k:
        warpers.append(TopKLogitsWarper(p.top_k))
    if p.top_p is not None and p.top_p < 1:
        warpers.append(TopPLogitsWarper(p.top_p))
    if p.min_p:
        warpers.append(MinPLogitsWarper(p.min_p))
    return _applied(warpers, torch.zeros(1, 0, dtype=torch.int64), logits_V[None])[0]


def _applied(processors: Callable[..., Tensor], ids: Tensor, scores: Tensor) -> Tensor:
    # transformers annotates tensor types of its own, which plain tensors are not.
    return processors(ids, scores)
