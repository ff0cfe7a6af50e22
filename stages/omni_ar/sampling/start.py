"""Sets up the sampling state of rows that start, or start again after a preemption."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from omni.device import Span
from omni.sampling import PARAMETERS
from omni_ar.kernels.sampling.state import COLUMNS, NEVER, SamplingState
from omni_ar.sampling.edits import unpack_bitmask

Part = TypeVar("Part")

_PARAMETERS = [(name, column.dtype.is_floating_point) for name, column in COLUMNS.items() if name in PARAMETERS]
FLOAT_PARAMETERS = tuple(name for name, is_float in _PARAMETERS if is_float)
INT_PARAMETERS = tuple(name for name, is_float in _PARAMETERS if not is_float)
INTS = ("row", "needs", "sample_index", *INT_PARAMETERS)


class StartParts(NamedTuple, Generic[Part]):
    """The state of n starting rows, all int64, packed on the host or viewed on the device. ints_nC: columns as in `INTS`.
    floats_nF: `FLOAT_PARAMETERS`, then, for each logits processor, whether the row uses it, and its parameters. floats_nF,
    biases_b: the bits of float64. stops_nS, recent_nL: as in `SamplingState`. seen_sM, forbidden_fM: bitmasks of ids, of rows
    seen_s and forbidden_f. counted_c: places in the flattened `counts`; counts_c: their values. bias_at_b: places in the flattened
    `bias_ids`. bad_words_wL: bad words; bad_words_at_w: their places, with rows and words flattened."""

    ints_nC: Part
    floats_nF: Part
    stops_nS: Part
    recent_nL: Part
    seen_s: Part
    seen_sM: Part
    forbidden_f: Part
    forbidden_fM: Part
    counted_c: Part
    counts_c: Part
    bias_at_b: Part
    bias_ids_b: Part
    biases_b: Part
    bad_words_at_w: Part
    bad_words_wL: Part


PackedSampling = StartParts[Span]
SamplingStart = StartParts[Tensor]


def view_starts(packed: PackedSampling, view: Callable[[Span], Tensor]) -> SamplingStart:
    """view: returns an uploaded array on the device (`Uploader.view`)."""
    return StartParts(*(view(span) for span in packed))


def start_sampling(state: SamplingState, start: SamplingStart) -> None:
    """Writes parameters and history of rows. A phase."""
    floats_nF = start.floats_nF.view(torch.float64)
    given = dict(zip(INTS, start.ints_nC.unbind(1), strict=True))
    given |= zip(FLOAT_PARAMETERS, floats_nF[:, : len(FLOAT_PARAMETERS)].unbind(1), strict=True)
    rows = given["row"]
    for name, values in state.columns().items():
        values.index_copy_(0, rows, given[name].to(values.dtype))
    state.stop_ids.index_copy_(0, rows, start.stops_nS)
    state.recent.index_copy_(0, rows, start.recent_nL)
    _start_processors(state, rows, floats_nF)
    _start_sets(state, rows, start)
    for table in (state.counts, state.bias_ids, state.biases):
        table.index_fill_(0, rows, 0)
    state.counts.view(-1).index_copy_(0, start.counted_c, start.counts_c.int())
    state.bias_ids.view(-1).index_copy_(0, start.bias_at_b, start.bias_ids_b)
    state.biases.view(-1).index_copy_(0, start.bias_at_b, start.biases_b.view(torch.float64).float())
    state.bad_words.index_fill_(0, rows, NEVER)
    state.bad_words.flatten(0, 1).index_copy_(0, start.bad_words_at_w, start.bad_words_wL)


def _start_processors(state: SamplingState, rows_n: Tensor, floats_nF: Tensor) -> None:
    column = len(FLOAT_PARAMETERS)
    for name, params_NW in state.params.items():
        end = column + 1 + params_NW.shape[1]
        state.uses[name].index_copy_(0, rows_n, floats_nF[:, column].bool())
        params_NW.index_copy_(0, rows_n, floats_nF[:, column + 1 : end].float())
        column = end


def _start_sets(state: SamplingState, rows_n: Tensor, start: SamplingStart) -> None:
    vocab = state.forbidden.shape[1]
    for ids_NV, rows, masks in (
        (state.seen, start.seen_s, start.seen_sM),
        (state.forbidden, start.forbidden_f, start.forbidden_fM),
    ):
        ids_NV.index_fill_(0, rows_n, False)
        # Few rows have either set, and a set is as wide as the vocabulary.
        if rows.shape[0]:
            ids_NV[:, :vocab].index_copy_(0, rows, unpack_bitmask(masks, vocab))
