"""Packs the sampling state of starting rows on the host."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from omni.device import Upload
from omni.sampling import SamplingParams
from omni_ar.kernels.sampling.state import (
    ANYTHING,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_BIASED_IDS,
    MAX_STOP_IDS,
    NO_TOKEN,
    SOMETHING,
    Need,
)
from omni_ar.processors import NamedProcessor
from omni_ar.sampling.edits import bitmask_size, pack_bitmask
from omni_ar.sampling.needs import needs_of
from omni_ar.sampling.start import FLOAT_PARAMETERS, INT_PARAMETERS, INTS, PackedSampling, StartParts

Ids = NDArray[np.int64]
_NO_IDS = np.empty(0, np.int64)
_int_parameters = attrgetter(*INT_PARAMETERS)
_float_parameters = attrgetter(*FLOAT_PARAMETERS)


@dataclass(frozen=True, slots=True)
class StartingRow:
    """A row to set up. sampling: as `resolve_sampling` returns it. seen: int64, prompt ids that the repetition penalty counts.
    history: int64, the prompt's ids in order, for bad words; may be empty. outputs: tokens generated so far, if the row was
    preempted. sample_index: index among the request's samples. params: parameters of the row's device-side logits processors."""

    row: int
    sampling: SamplingParams
    seen: Ids = field(default_factory=lambda: _NO_IDS)
    history: Ids = field(default_factory=lambda: _NO_IDS)
    outputs: Sequence[int] = ()
    sample_index: int = 0
    params: Mapping[str, Sequence[float]] = field(default_factory=dict)


def start_size(vocab: int, max_model_len: int, processors: Sequence[NamedProcessor] = ()) -> int:
    """Maximum number of int64 in the upload of one starting row. max_model_len: maximum number of tokens of a row."""
    settings = len(INTS) + len(FLOAT_PARAMETERS) + sum(1 + p.width for p in processors)
    settings += MAX_STOP_IDS + 1 + MAX_BAD_WORD_LENGTH
    sets = 2 * (1 + bitmask_size(vocab))
    counts = 2 * min(vocab, max_model_len)
    return settings + sets + counts + 3 * MAX_BIASED_IDS + MAX_BAD_WORDS * (2 + MAX_BAD_WORD_LENGTH)


def pack_sampling(
    upload: Upload, rows: Sequence[StartingRow], vocab: int, processors: Sequence[NamedProcessor] = ()
) -> PackedSampling:
    """Fills `upload`. rows: at least one. processors: the processors that the state was allocated for, in that order."""
    needs = [needs_of(row.sampling) for row in rows]

    def that(need: int) -> list[StartingRow]:
        return [row for row, bits in zip(rows, needs, strict=True) if bits & need]

    # In the order of `INTS`.
    ints = [
        [row.row, bits, row.sample_index, *_int_parameters(row.sampling)] for row, bits in zip(rows, needs, strict=True)
    ]
    seen, forbidden = that(Need.REPETITION), that(Need.FORBIDDEN)
    counted = [(row.row, *np.unique(_outputs(row), return_counts=True)) for row in that(Need.COUNTS) if row.outputs]
    biases = [(row.row, row.sampling.logit_bias) for row in rows if row.sampling.logit_bias]
    # Those of several tokens.
    words = [(row.row, [word for word in row.sampling.bad_words_ids or () if len(word) > 1]) for row in rows]
    return StartParts(
        ints_nC=upload.add(np.array(ints, np.int64)),
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
    """A row of `SamplingState.bad_words`."""
    # transformers matches a word only once there are as many tokens as the word has, not counting the next one.
    before = [SOMETHING, *word[:-1]]
    return np.array([*[ANYTHING] * (MAX_BAD_WORD_LENGTH - len(before)), *before, word[-1]], np.int64)


def _array(values: Iterable[int]) -> Ids:
    return np.fromiter(values, np.int64)


def _joined(parts: Iterable[Ids]) -> Ids:
    return np.concatenate([_NO_IDS, *parts])


def _stacked(parts: Iterable[Ids], width: int) -> Ids:
    return np.concatenate([np.empty((0, width), np.int64), *(part[None] for part in parts)])
