"""Setting up rows that begin, or begin again after a preemption."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from omni.device import Span
from omni_ar.sampling.bits import unpack_bits
from omni_ar.sampling.state import NEVER, SamplingState

Part = TypeVar("Part")

INTS = ("row", "top_k", "code_top_k", "seed", "sample_index", "min_tokens", "needs")
"""Columns of `StartParts.ints_nC`."""

FLOATS = ("temperature", "top_p", "min_p", "code_temperature", "code_top_p", "repetition", "frequency", "presence")
"""First columns of `StartParts.floats_nF`. Then, for each logits processor, whether the row uses it, and its parameters."""


class StartParts(NamedTuple, Generic[Part]):
    """What the state of n starting rows is made of, all int64; packed on the host, or viewed on the device.

    floats_nF, biases_b: the bits of float64. stops_nS, recent_nL: as in `SamplingState`. seen_sW, forbidden_fW: sets of ids as
    bits, of rows seen_s and forbidden_f. counted_c: places in the flattened `counts`; counts_c: what belongs there. bias_at_b:
    places in the flattened `bias_ids`. words_wL: bad words; words_at_w: their places, with rows and words flattened.
    """

    ints_nC: Part
    floats_nF: Part
    stops_nS: Part
    recent_nL: Part
    seen_s: Part
    seen_sW: Part
    forbidden_f: Part
    forbidden_fW: Part
    counted_c: Part
    counts_c: Part
    bias_at_b: Part
    bias_ids_b: Part
    biases_b: Part
    words_at_w: Part
    words_wL: Part


PackedSampling = StartParts[Span]
SamplingStart = StartParts[Tensor]


def view_starts(packed: PackedSampling, view: Callable[[Span], Tensor]) -> SamplingStart:
    """view: gives an uploaded array on the device (`Uploader.view`)."""
    return StartParts(*(view(span) for span in packed))


def start_sampling(state: SamplingState, start: SamplingStart) -> None:
    """Writes settings and history of rows. A phase."""
    rows, top_k, code_top_k, seed, sample_index, min_tokens, needs = start.ints_nC.unbind(1)
    floats_nF = start.floats_nF.view(torch.float64)
    floats = floats_nF[:, : len(FLOATS)].unbind(1)
    temperature, top_p, min_p, code_temperature, code_top_p, repetition, frequency, presence = floats
    for values, given in (
        (state.top_k, top_k),
        (state.code_top_k, code_top_k),
        (state.seed, seed),
        (state.sample_index, sample_index),
        (state.min_tokens, min_tokens),
        (state.needs, needs),
        (state.temperature, temperature),
        (state.top_p, top_p),
        (state.min_p, min_p),
        (state.code_temperature, code_temperature),
        (state.code_top_p, code_top_p),
        (state.repetition, repetition),
        (state.frequency, frequency),
        (state.presence, presence),
        (state.stop_ids, start.stops_nS),
        (state.recent, start.recent_nL),
    ):
        values.index_copy_(0, rows, given.to(values.dtype))
    _start_processors(state, rows, floats_nF)
    _start_sets(state, rows, start)
    for table in (state.counts, state.bias_ids, state.biases):
        table.index_fill_(0, rows, 0)
    state.counts.view(-1).index_copy_(0, start.counted_c, start.counts_c.int())
    state.bias_ids.view(-1).index_copy_(0, start.bias_at_b, start.bias_ids_b)
    state.biases.view(-1).index_copy_(0, start.bias_at_b, start.biases_b.view(torch.float64).float())
    state.bad_words.index_fill_(0, rows, NEVER)
    state.bad_words.flatten(0, 1).index_copy_(0, start.words_at_w, start.words_wL)


def _start_processors(state: SamplingState, rows_n: Tensor, floats_nF: Tensor) -> None:
    column = len(FLOATS)
    for name, params_NW in state.params.items():
        end = column + 1 + params_NW.shape[1]
        state.uses[name].index_copy_(0, rows_n, floats_nF[:, column].bool())
        params_NW.index_copy_(0, rows_n, floats_nF[:, column + 1 : end].float())
        column = end


def _start_sets(state: SamplingState, rows_n: Tensor, start: SamplingStart) -> None:
    vocab = state.forbidden.shape[1]
    for ids_NV, rows, words in (
        (state.seen, start.seen_s, start.seen_sW),
        (state.forbidden, start.forbidden_f, start.forbidden_fW),
    ):
        ids_NV.index_fill_(0, rows_n, False)
        # Few rows have either, and the sets are as wide as the vocabulary.
        if rows.shape[0]:
            ids_NV[:, :vocab].index_copy_(0, rows, unpack_bits(words, vocab))
