"""Packing rows that start, on the host."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from omni.device import Upload
from omni.sampling import SamplingParams
from omni_ar.processors import NamedProcessor
from omni_ar.sampling.bits import bit_words, pack_bits
from omni_ar.sampling.bounds import MAX_BAD_WORD_LENGTH, MAX_BAD_WORDS, MAX_BIASED_IDS, MAX_STOP_IDS
from omni_ar.sampling.needs import needs_of
from omni_ar.sampling.start import FLOATS, INTS, PackedSampling, StartParts
from omni_ar.sampling.state import ANYTHING, NO_TOKEN, SOMETHING

Ids = NDArray[np.int64]
_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class StartingRow:
    """A row as it is set up.

    sampling: as `resolve_sampling` gives it. seen: int64, prompt ids that the repetition penalty counts, in any order. history:
    int64, the prompt's ids in order, which bad words look back on; may be empty. outputs: tokens generated so far, if the row was
    preempted. sample_index: which of a request's samples this is. params: of the logits processors it uses on the device.
    """

    row: int
    sampling: SamplingParams
    seen: Ids = field(default_factory=lambda: _NO_IDS)
    history: Ids = field(default_factory=lambda: _NO_IDS)
    outputs: Sequence[int] = ()
    sample_index: int = 0
    params: Mapping[str, Sequence[float]] = field(default_factory=dict)


def start_words(vocab: int, max_model_len: int, processors: Sequence[NamedProcessor] = ()) -> int:
    """int64 words that one starting row takes at most. max_model_len: tokens that a row may have generated at most."""
    settings = len(INTS) + len(FLOATS) + sum(1 + p.width for p in processors) + MAX_STOP_IDS + 1 + MAX_BAD_WORD_LENGTH
    sets = 2 * (1 + bit_words(vocab))
    counts = 2 * min(vocab, max_model_len)
    return settings + sets + counts + 3 * MAX_BIASED_IDS + MAX_BAD_WORDS * (2 + MAX_BAD_WORD_LENGTH)


def pack_sampling(
    upload: Upload, rows: Sequence[StartingRow], vocab: int, processors: Sequence[NamedProcessor] = ()
) -> PackedSampling:
    """Fills `upload`. rows: at least one. processors: those that the state was allocated with, in that order."""
    seen = [(row.row, _seen(row, vocab)) for row in rows if row.sampling.repetition_penalty != 1]
    forbidden = [(row.row, _forbidden(row.sampling, vocab)) for row in rows if _forbids(row.sampling)]
    counted = [(row.row, *np.unique(_outputs(row), return_counts=True)) for row in rows if _counts(row)]
    biases = [(row.row, row.sampling.logit_bias) for row in rows if row.sampling.logit_bias]
    words = [(row.row, _sequences(row.sampling)) for row in rows]
    return StartParts(
        ints_nC=upload.add(np.array([_ints(row) for row in rows], np.int64)),
        floats_nF=upload.add_floats(np.array([_floats(row, processors) for row in rows], np.float64)),
        stops_nS=upload.add(np.stack([_stops(row) for row in rows])),
        recent_nL=upload.add(np.stack([_recent(row) for row in rows])),
        seen_s=upload.add(_array(row for row, _ in seen)),
        seen_sW=upload.add(_stacked((ids for _, ids in seen), bit_words(vocab))),
        forbidden_f=upload.add(_array(row for row, _ in forbidden)),
        forbidden_fW=upload.add(_stacked((ids for _, ids in forbidden), bit_words(vocab))),
        counted_c=upload.add(_joined(row * (vocab + 1) + ids for row, ids, _ in counted)),
        counts_c=upload.add(_joined(times for _, _, times in counted)),
        bias_at_b=upload.add(_joined(row * MAX_BIASED_IDS + np.arange(len(bias)) for row, bias in biases)),
        bias_ids_b=upload.add(_array(i for _, bias in biases for i in bias)),
        biases_b=upload.add_floats(np.array([b for _, bias in biases for b in bias.values()], np.float64)),
        words_at_w=upload.add(_joined(row * MAX_BAD_WORDS + np.arange(len(each)) for row, each in words)),
        words_wL=upload.add(_stacked((_word(word) for _, each in words for word in each), 1 + MAX_BAD_WORD_LENGTH)),
    )


def _ints(row: StartingRow) -> tuple[int, ...]:
    """As in `INTS`."""
    p = row.sampling
    return (row.row, _set(p.top_k), _set(p.code_top_k), _set(p.seed), row.sample_index, _set(p.min_tokens), needs_of(p))


def _floats(row: StartingRow, processors: Sequence[NamedProcessor]) -> tuple[float, ...]:
    """As in `FLOATS`, and what follows there."""
    p = row.sampling
    drawn = (p.temperature, p.top_p, p.min_p, p.code_temperature, p.code_top_p)
    penalties = (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
    values = [_set(value) for value in (*drawn, *penalties)]
    for processor in processors:
        params = row.params.get(processor.name)
        values += [params is not None, *(params if params is not None else [0.0] * processor.width)]
    return tuple(values)


Number = TypeVar("Number", int, float)


def _set(value: Number | None) -> Number:
    assert value is not None, "of parameters that are resolved every number is set"
    return value


def _stops(row: StartingRow) -> Ids:
    ids = row.sampling.stop_token_ids or ()
    return np.array([*ids, *[NO_TOKEN] * (MAX_STOP_IDS + 1 - len(ids))], np.int64)


def _recent(row: StartingRow) -> Ids:
    none = np.full(MAX_BAD_WORD_LENGTH, NO_TOKEN)
    newest = np.array(row.outputs[-MAX_BAD_WORD_LENGTH:], np.int64)
    return np.concatenate([none, row.history[-MAX_BAD_WORD_LENGTH:], newest])[-MAX_BAD_WORD_LENGTH:]


def _outputs(row: StartingRow) -> Ids:
    return np.array(row.outputs, np.int64)


def _counts(row: StartingRow) -> bool:
    """Whether somebody looks at the row's counts."""
    p = row.sampling
    return bool(row.outputs) and (p.frequency_penalty != 0 or p.presence_penalty != 0 or bool(row.params))


def _seen(row: StartingRow, vocab: int) -> Ids:
    seen_V = np.zeros(vocab, np.bool_)
    seen_V[row.seen] = True
    seen_V[_outputs(row)] = True
    return pack_bits(seen_V)


def _forbids(sampling: SamplingParams) -> bool:
    some = sampling.suppress_token_ids or sampling.allowed_token_ids
    return bool(some) or any(len(word) == 1 for word in sampling.bad_words_ids or ())


def _forbidden(sampling: SamplingParams, vocab: int) -> Ids:
    forbidden_V = np.full(vocab, bool(sampling.allowed_token_ids))
    forbidden_V[list(sampling.allowed_token_ids or ())] = False
    forbidden_V[list(sampling.suppress_token_ids or ())] = True
    forbidden_V[[word[0] for word in sampling.bad_words_ids or () if len(word) == 1]] = True
    return pack_bits(forbidden_V)


def _sequences(sampling: SamplingParams) -> list[tuple[int, ...]]:
    """Bad words of several tokens."""
    return [word for word in sampling.bad_words_ids or () if len(word) > 1]


def _word(word: tuple[int, ...]) -> Ids:
    """A row of `SamplingState.bad_words`."""
    # transformers looks for a word only once there are as many tokens as it has, the one to come not counted.
    what_must_be = [SOMETHING, *word[:-1]]
    return np.array([*[ANYTHING] * (MAX_BAD_WORD_LENGTH - len(what_must_be)), *what_must_be, word[-1]], np.int64)


def _array(values: Iterable[int]) -> Ids:
    return np.fromiter(values, np.int64)


def _joined(parts: Iterable[Ids]) -> Ids:
    return np.concatenate([_NO_IDS, *parts])


def _stacked(parts: Iterable[Ids], width: int) -> Ids:
    return np.concatenate([np.empty((0, width), np.int64), *(part[None] for part in parts)])
