"""Sampling by itself, through everything that a stage does: parameters resolved, rows packed, uploaded and set up."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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

from omni.device import Uploader, open_device
from omni.sampling import GREEDY, LogitsEdit, SamplingParams
from omni_ar.kernels.sampling.state import EVERYTHING, SamplingState
from omni_ar.kernels.step.reference import observe
from omni_ar.processors import NamedProcessor
from omni_ar.sampling.edits import edit_size, merge_edits, pack_edits
from omni_ar.sampling.pack import (
    StartingRow,
    flags_of,
    merge_flags,
    pack_sampling,
    start_sampling,
    start_size,
)
from omni_ar.sampling.penalties import apply_penalties
from omni_ar.sampling.resolve import resolve_sampling
from omni_ar.sampling.rng import gumbel
from omni_ar.sampling.sampler import sample
from omni_ar.sampling.warpers import warp_tokens

# The logits of one row after its parameters, by transformers' processors and warpers, and by definition where it has none.


def reference_logits(logits_V: Tensor, p: SamplingParams, prompt: Sequence[int], outputs: Sequence[int]) -> Tensor:
    """fp32 `[V]`: a row's logits after its rules, after these tokens."""
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


def resolved(vocab: int, **asked: Any) -> SamplingParams:
    """Parameters as a stage without defaults of its own resolves them. Without a seed it is 0."""
    return resolve_sampling(SamplingParams(**{"seed": 0, **asked}), GREEDY, "text", vocab)


def starting(row: int, sampling: SamplingParams, prompt: Sequence[int] = (), **others: Any) -> StartingRow:
    """prompt: what penalties count and what bad words look back on."""
    ids = np.array(prompt, np.int64)
    return StartingRow(row=row, sampling=sampling, seen=ids, history=ids, **others)


class SamplerBench:
    """The sampler of a stage of N rows."""

    def __init__(
        self, vocab: int, rows: int, processors: Sequence[NamedProcessor] = (), max_model_len: int = 256
    ) -> None:
        self.vocab = vocab
        self.processors = processors
        self.device = open_device("cpu")
        self.state = SamplingState.allocate(self.device.zeros, rows, vocab, {p.name: p.width for p in processors})
        self.sampling: dict[int, SamplingParams] = {}
        self._stream = self.device.stream("main")
        words = rows * start_size(vocab, max_model_len, processors) + edit_size(vocab, rows)
        self._uploader = Uploader(self.device, self._stream, words, 2)

    def start(self, rows: Sequence[StartingRow]) -> int:
        """Sets rows up. Returns how many words the upload took."""
        upload = self._uploader.begin()
        packed = pack_sampling(upload, rows, self.vocab, self.processors)
        self._uploader.launch(upload)
        start_sampling(self.state, packed.on_device(self._uploader.view))
        self.sampling.update({row.row: row.sampling for row in rows})
        return upload.size

    def sample(
        self,
        logits_RV: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        edits: Sequence[tuple[int, LogitsEdit]] = (),
    ) -> list[int]:
        """edits: of places in the batch."""
        on_device = None
        if edits:
            upload = self._uploader.begin()
            packed = pack_edits(upload, [(place, merge_edits([e], self.vocab)) for place, e in edits], self.vocab)
            self._uploader.launch(upload)
            on_device = packed.on_device(self._uploader.view)
        flags = merge_flags(flags_of(self.sampling[row]) for row in rows)
        rows_R, position_R = torch.tensor(rows), torch.tensor(positions)
        ids: list[int] = sample(logits_RV, self.state, rows_R, position_R, flags, on_device, self.processors).tolist()
        return ids

    def observe(self, rows: Sequence[int], ids: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        """As after a step of these rows."""
        flags = merge_flags(flags_of(self.sampling[row]) for row in rows)
        observe(self.state, torch.tensor(rows), torch.tensor(ids), torch.tensor(counts), flags)


# The sampling kernels next to the sampler that they stand for, on states that are set up as a stage does it.

CLOSE = 1e-4
"""Two ids whose noisy logits are no further apart may be taken for one another."""

STOPS = (1, 2)


def state_of(
    vocab: int, rows: Sequence[Mapping[str, Any]], prompt: Sequence[int] = (), outputs: Sequence[int] = ()
) -> SamplingState:
    """State of rows with these parameters, on the CPU."""
    bench = SamplerBench(vocab, len(rows))
    bench.start(
        [starting(index, resolved(vocab, **asked), prompt, outputs=outputs) for index, asked in enumerate(rows)]
    )
    return bench.state


def moved(state: SamplingState, device: str) -> SamplingState:
    tensors = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    there: dict[str, Any] = {name: t.to(device) for name, t in tensors.items() if isinstance(t, Tensor)}
    return dataclasses.replace(state, **there)


def noisy_logits(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, position_R: Tensor) -> Tensor:
    """The values whose argmax is the token, by the sampler's own parts, on the CPU."""

    def of(values: Tensor) -> Tensor:
        return values.index_select(0, rows_R)

    logits_RV = apply_penalties(logits_RV, state, rows_R, position_R, EVERYTHING.needs)
    warped_RV = warp_tokens(logits_RV, state, rows_R, EVERYTHING.needs)
    noise_RV = gumbel(of(state.seed), of(state.sample_index), position_R, 0, 0, logits_RV.shape[1])
    return torch.where(of(state.temperature)[:, None] == 0, logits_RV, warped_RV + noise_RV)


def assert_same_ids(given_R: Tensor, expected_R: Tensor, noisy_RV: Tensor) -> None:
    """Equal, but where the two are within rounding of each other."""
    for row in (given_R != expected_R).nonzero().flatten().tolist():
        given, expected = int(given_R[row]), int(expected_R[row])
        assert given >= 0, (row, given, expected)
        assert expected >= 0, (row, given, expected)
        apart = float(noisy_RV[row, expected] - noisy_RV[row, given])
        assert apart <= CLOSE, (row, given, expected, apart)
