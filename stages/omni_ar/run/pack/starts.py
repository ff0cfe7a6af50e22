"""Packs the rows that a step sets up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omni.device import Span, Upload
from omni_ar.kernels.step.state import RowFields
from omni_ar.model import ArShape
from omni_ar.processors import NamedProcessor
from omni_ar.run.request import ArRequest
from omni_ar.sampling import PackedSampling, StartingRow, pack_sampling

_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class PackedStarts:
    """rows: indexes of the rows. fields: their `RowState.fields`. table: their blocks."""

    rows: Span
    fields: Span
    table: Span
    sampling: PackedSampling


def pack_starts(
    upload: Upload, new: Sequence[ArRequest], shape: ArShape, processors: Sequence[NamedProcessor]
) -> PackedStarts:
    return PackedStarts(
        rows=upload.add(np.array([request.row_index for request in new], np.int64)),
        fields=upload.add(np.array([_fields(request) for request in new], np.int64)),
        table=upload.add(np.stack([request.held_table.ids for request in new])),
        sampling=pack_sampling(upload, [_starting(request, shape) for request in new], shape.vocab_size, processors),
    )


def _fields(request: ArRequest) -> RowFields[int]:
    """The fields of a row without sampled or cached tokens."""
    assert request.prompt is not None
    assert request.row is not None
    return RowFields(
        last=0,
        length=0,
        delta=request.prompt.next_position - request.prompt.length,
        outputs=len(request.outputs),
        limit=request.max_tokens,
        active=1,
        generation=request.row.generation,
        counted=0,
    )


def _starting(request: ArRequest, shape: ArShape) -> StartingRow:
    prompt = request.prompt
    assert prompt is not None
    # A prompt of several columns is not a text that bad words can match.
    history = prompt.columns[0] if len(shape.prompt_columns) == 1 else _NO_IDS
    return StartingRow(
        row=request.row_index,
        sampling=request.sampling,
        seen=prompt.penalized_ids,
        history=history,
        outputs=request.outputs,
        sample_index=request.sample_index,
        params=request.params,
    )
