"""The sampling state of starting rows: their work as bits and flags, packed on the host, and set up on the device."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import PackedSpan, Upload
from omni.sampling import PARAMETERS, SamplingParams
from omni_ar.kernels.sampling.state import (
    ANYTHING,
    COLUMNS,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_BIASED_IDS,
    MAX_STOP_IDS,
    NEVER,
    NO_TOKEN,
    Need,
    SamplingFlags,
    SamplingState,
)
from omni_ar.processors import NamedProcessor
from omni_ar.sampling.edits import bitmask_size, pack_bitmask, unpack_bitmask

_COLUMNS = {name: column for name, column in COLUMNS.items() if column.need}
_values = attrgetter(*_COLUMNS)
_OFF_AND_NEED = [(PARAMETERS[name].off, column.need) for name, column in _COLUMNS.items()]


def needs_of(p: SamplingParams) -> int:
    """Bits of `Need` for a row with these parameters, as `resolve_sampling` returns them."""
    needs = 0
    for value, (off, need) in zip(_values(p), _OFF_AND_NEED, strict=True):
        if value != off:
            needs |= need
    if p.logit_bias:
        needs |= Need.BIAS
    if p.suppress_token_ids or p.allowed_token_ids:
        needs |= Need.FORBIDDEN
    for word in p.bad_words_ids or ():
        needs |= Need.FORBIDDEN if len(word) == 1 else Need.BAD_WORDS | Need.RECALLS
    if p.processors:
        needs |= Need.COUNTS | Need.RECALLS
    if p.ignore_eos:
        needs |= Need.ENDLESS
    return needs


def flags_of(p: SamplingParams) -> SamplingFlags:
    """The work of a row with these parameters, as `resolve_sampling` returns them."""
    return SamplingFlags(needs_of(p), frozenset(p.processors or ()))


def merge_flags(rows: Iterable[SamplingFlags]) -> SamplingFlags:
    """The work of a batch of rows."""
    needs = 0
    processors: frozenset[str] = frozenset()
    for row in rows:
        needs |= row.needs
        if row.processors:
            processors |= row.processors
    return SamplingFlags(needs, processors)


Part = TypeVar("Part")

_PARAMETERS = [(name, column.dtype.is_floating_point) for name, column in COLUMNS.items() if name in PARAMETERS]
FLOAT_PARAMETERS = tuple(name for name, is_float in _PARAMETERS if is_float)
INT_PARAMETERS = tuple(name for name, is_float in _PARAMETERS if not is_float)
_INTS = {name: name for name in ("row", "needs", "sample_index")} | {
    name: f"sampling.{name}" for name in INT_PARAMETERS
}
"""The columns of `StartParts.ints_nC` in order: name, and the attribute of a `StartingRow` with its value."""


class StartParts(NamedTuple, Generic[Part]):
    """The state of n starting rows, all int64, packed on the host or viewed on the device. ints_nC: columns as in `_INTS`.
    floats_nF: `FLOAT_PARAMETERS`, then, for each logits processor, whether the row uses it, and its parameters. floats_nF,
    biases_b: the bits of float64. stops_nS, recent_nL: as in `SamplingState`. seen_sM, forbidden_fM: bitmasks of ids, of rows
    seen_s and forbidden_f. counted_c: indices in the flattened `counts`; counts_c: their values. bias_at_b: indices in the
    flattened `bias_ids`. bad_words_wL: bad words; bad_words_at_w: their indices, with rows and words flattened."""

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

    def on_device(self, view: Callable[[Part], Tensor]) -> "SamplingStart":
        """view: returns an uploaded array on the device (`Uploader.view`)."""
        return StartParts(*map(view, self))


PackedSampling = StartParts[PackedSpan]
SamplingStart = StartParts[Tensor]


def start_sampling(state: SamplingState, start: SamplingStart) -> None:
    floats_nF = start.floats_nF.view(torch.float64)
    given = dict(zip(_INTS, start.ints_nC.unbind(1), strict=True))
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
        # Few rows have one of these sets, and a set is as wide as the vocabulary.
        if rows.shape[0]:
            ids_NV[:, :vocab].index_copy_(0, rows, unpack_bitmask(masks, vocab))


Ids = NDArray[np.int64]
_NO_IDS = np.empty(0, np.int64)
_ints = attrgetter(*_INTS.values())
_float_parameters = attrgetter(*FLOAT_PARAMETERS)


@dataclass(frozen=True, slots=True)
class StartingRow:
    """A row to set up. sampling: as `resolve_sampling` returns it. seen: int64, prompt ids that the repetition penalty counts.
    history: int64, the prompt's ids in order, for bad words; may be empty. outputs: tokens generated so far, if the row was
    preempted. sample_index: index among the request's samples. params: parameters of the row's device-side logits processors.
    needs: bits of `Need`."""

    row: int
    sampling: SamplingParams
    seen: Ids = field(default_factory=lambda: _NO_IDS)
    history: Ids = field(default_factory=lambda: _NO_IDS)
    outputs: Sequence[int] = ()
    sample_index: int = 0
    params: Mapping[str, Sequence[float]] = field(default_factory=dict)
    needs: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", needs_of(self.sampling))


def start_size(vocab: int, max_model_len: int, processors: Sequence[NamedProcessor] = ()) -> int:
    """Maximum number of int64 in the upload of one starting row. max_model_len: maximum number of tokens of a row."""
    settings = len(_INTS) + len(FLOAT_PARAMETERS) + sum(1 + p.width for p in processors)
    settings += MAX_STOP_IDS + 1 + MAX_BAD_WORD_LENGTH
    sets = 2 * (1 + bitmask_size(vocab))
    counts = 2 * min(vocab, max_model_len)
    return settings + sets + counts + 3 * MAX_BIASED_IDS + MAX_BAD_WORDS * (2 + MAX_BAD_WORD_LENGTH)


def pack_sampling(
    upload: Upload, rows: Sequence[StartingRow], vocab: int, processors: Sequence[NamedProcessor] = ()
) -> PackedSampling:
    """Fills `upload`. rows: at least one. processors: the processors that the state was allocated for, in that order."""

    def that(need: int) -> list[StartingRow]:
        return [row for row in rows if row.needs & need]

    seen, forbidden = that(Need.REPETITION), that(Need.FORBIDDEN)
    counted = [(row.row, *np.unique(_outputs(row), return_counts=True)) for row in that(Need.COUNTS) if row.outputs]
    biases = [(row.row, row.sampling.logit_bias) for row in rows if row.sampling.logit_bias]
    # Bad words of several tokens.
    words = [(row.row, [word for word in row.sampling.bad_words_ids or () if len(word) > 1]) for row in rows]
    return StartParts(
        ints_nC=upload.add(np.array([_ints(row) for row in rows], np.int64)),
        floats_nF=upload.add_floats(np.array([_floats(row, processors) for row in rows], np.float64)),
        stops_nS=upload.add(np.stack([_stops(row) for row in rows])),
        recent_nL=upload.add(np.stack([_recent(row) for row in rows])),
        seen_s=upload.add(_array(row.row for row in seen)),
        seen_sM=upload.add(_stacked((_seen(row, vocab) for row in seen), bitmask_size(vocab))),
        forbidden_f=upload.add(_array(row.row for row in forbidden)),
        forbidden_fM=upload.add(_stacked((_forbidden(row.sampling, vocab) for row in forbidden), bitmask_size(vocab))),
        counted_c=upload.add(_joined(row * (vocab + 1) + ids for row, ids, _ in counted)),
        counts_c=upload.add(_joined(times for _, _, times in counted)),
        bias_at_b=upload.add(_joined(row * MAX_BIASED_IDS + np.arange(len(bias)) for row, bias in biases)),
        bias_ids_b=upload.add(_array(i for _, bias in biases for i in bias)),
        biases_b=upload.add_floats(np.array([b for _, bias in biases for b in bias.values()], np.float64)),
        bad_words_at_w=upload.add(_joined(row * MAX_BAD_WORDS + np.arange(len(each)) for row, each in words)),
        bad_words_wL=upload.add(
            _stacked((_bad_word(word) for _, each in words for word in each), 1 + MAX_BAD_WORD_LENGTH)
        ),
    )


def _floats(row: StartingRow, processors: Sequence[NamedProcessor]) -> list[float]:
    """The row's values in the order of `StartParts.floats_nF`."""
    values = list(_float_parameters(row.sampling))
    assert None not in values, "every number of resolved parameters is set"
    for processor in processors:
        params = row.params.get(processor.name)
        values += [params is not None, *(params if params is not None else [0.0] * processor.width)]
    return values


def _stops(row: StartingRow) -> Ids:
    ids = row.sampling.stop_token_ids or ()
    return np.array([*ids, *[NO_TOKEN] * (MAX_STOP_IDS + 1 - len(ids))], np.int64)


def _recent(row: StartingRow) -> Ids:
    none = np.full(MAX_BAD_WORD_LENGTH, NO_TOKEN)
    newest = np.array(row.outputs[-MAX_BAD_WORD_LENGTH:], np.int64)
    return np.concatenate([none, row.history[-MAX_BAD_WORD_LENGTH:], newest])[-MAX_BAD_WORD_LENGTH:]


def _outputs(row: StartingRow) -> Ids:
    return np.array(row.outputs, np.int64)


def _seen(row: StartingRow, vocab: int) -> Ids:
    seen_V = np.zeros(vocab, np.bool_)
    seen_V[row.seen] = True
    seen_V[_outputs(row)] = True
    return pack_bitmask(seen_V)


def _forbidden(sampling: SamplingParams, vocab: int) -> Ids:
    forbidden_V = np.full(vocab, bool(sampling.allowed_token_ids))
    forbidden_V[list(sampling.allowed_token_ids or ())] = False
    forbidden_V[list(sampling.suppress_token_ids or ())] = True
    forbidden_V[[word[0] for word in sampling.bad_words_ids or () if len(word) == 1]] = True
    return pack_bitmask(forbidden_V)


def _bad_word(word: tuple[int, ...]) -> Ids:
    before = word[:-1]
    return np.array([*[ANYTHING] * (MAX_BAD_WORD_LENGTH - len(before)), *before, word[-1]], np.int64)


def _array(values: Iterable[int]) -> Ids:
    return np.fromiter(values, np.int64)


def _joined(parts: Iterable[Ids]) -> Ids:
    return np.concatenate([_NO_IDS, *parts])


def _stacked(parts: Iterable[Ids], width: int) -> Ids:
    return np.concatenate([np.empty((0, width), np.int64), *(part[None] for part in parts)])
