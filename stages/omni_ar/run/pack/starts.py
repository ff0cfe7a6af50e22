"""Rows that a step sets up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omni.device import Span, Upload
from omni_ar.run.limits import MAX_STOP_IDS
from omni_ar.run.request import ArRequest


@dataclass(frozen=True, slots=True)
class PackedStarts:
    """What `phases.Start` holds."""

    ints: Span
    floats: Span
    stops: Span
    table: Span
    seen: Span
    suppressed: Span


def pack_starts(upload: Upload, new: Sequence[ArRequest]) -> PackedStarts:
    stops = np.full((len(new), MAX_STOP_IDS), -1, np.int64)
    for row, request in zip(stops, new, strict=True):
        ids = request.sampling.stop_token_ids or ()
        row[: len(ids)] = ids
    suppressed = [np.array(request.sampling.suppress_token_ids, np.int64) for request in new]
    return PackedStarts(
        ints=upload.add(np.array([_ints(request) for request in new], np.int64)),
        floats=upload.add_floats(np.array([_floats(request) for request in new], np.float64)),
        stops=upload.add(stops),
        table=upload.add(np.stack([request.held.ids for request in new])),
        seen=upload.add(_pairs(new, [_seen(request) for request in new])),
        suppressed=upload.add(_pairs(new, suppressed)),
    )


def _ints(request: ArRequest) -> tuple[int, ...]:
    sampling, prompt = request.sampling, request.prompt
    assert prompt is not None
    assert sampling.top_k is not None
    assert sampling.seed is not None
    delta = prompt.next_position - prompt.length
    return (request.row_index, delta, len(request.outputs), request.max_tokens, sampling.top_k, sampling.seed, 0)


def _floats(request: ArRequest) -> tuple[float, ...]:
    sampling = request.sampling
    assert sampling.temperature is not None
    assert sampling.top_p is not None
    assert sampling.repetition_penalty is not None
    return (sampling.temperature, sampling.top_p, sampling.repetition_penalty)


def _seen(request: ArRequest) -> NDArray[np.int64]:
    """Ids that the repetition penalty counts as seen; none where there is no penalty."""
    assert request.prompt is not None
    if request.sampling.repetition_penalty == 1.0:
        return np.empty(0, np.int64)
    return np.concatenate([request.prompt.penalized_ids, np.array(request.outputs, np.int64)])


def _pairs(new: Sequence[ArRequest], ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    rows = np.repeat([request.row_index for request in new], [len(i) for i in ids])
    return np.stack([rows.astype(np.int64), np.concatenate(ids)])
