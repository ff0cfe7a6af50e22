"""Packs the host inputs of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from omni.device import Span, Upload
from omni_ar.kernels.step.state import RowFields
from omni_ar.model import ArShape
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.run.pack.chunks import PackedChunks, pack_chunks, pack_steps
from omni_ar.run.plan import PaddedShape, StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.sampling import PackedEdits, PackedSampling, StartingRow, pack_edits, pack_sampling

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class PackedStep:
    """rows, advance, steps: as in `LeadingInputs`, without padding rows. new_blocks: `[2, k]`, places in the flattened block table
    and blocks that are added there; None if there are none. edits: of the logits; None if no row is constrained."""

    rows: Span
    advance: Span
    steps: Span
    new_blocks: Span | None
    starts: PackedStarts | None
    chunks: PackedChunks | None
    edits: PackedEdits | None

    def repeated(self) -> "PackedStep":
        """The inputs that an unchanged batch of decode rows reuses: without new blocks and edits, which apply once."""
        return replace(self, new_blocks=None, edits=None)


class LeadingInputs(NamedTuple, Generic[T]):
    """The arrays at the beginning of each upload, in this order, so that a captured graph finds them there. rows: row of each
    sampled request. advance: number of tokens that the step runs for it. steps: `[X, R]`, conditioning of the decode rows,
    `step_fields` each. In a step with chunks, which replays no captured decode, its length differs."""

    rows: T
    advance: T
    steps: T


def captured_spans(rows: int, fields: int) -> LeadingInputs[Span]:
    """Places of the inputs of a captured graph for `rows` rows. fields: `step_fields`."""
    shapes = LeadingInputs[tuple[int, ...]](rows=(rows,), advance=(rows,), steps=(fields, rows))
    starts = accumulate((prod(shape) for shape in shapes), initial=0)
    return LeadingInputs(*(Span(start, shape) for start, shape in zip(starts, shapes, strict=False)))


def pack_step(
    upload: Upload,
    plan: StepPlan,
    limits: Limits,
    shape: ArShape,
    processors: Sequence[NamedProcessor],
    padded: int | None = None,
    padded_shape: PaddedShape | None = None,
) -> PackedStep:
    """Fills `upload`. padded: rows of the batch, null rows included; None for no padding. padded_shape: None for the smallest."""
    padded_shape = padded_shape or plan.padded_shape
    sampled = plan.sampled
    size = len(sampled) if padded is None else padded
    rows, advance = np.full(size, limits.null_row), np.ones(size, np.int64)
    rows[: len(sampled)] = [request.row_index for request in sampled]
    advance[len(plan.decodes) : len(sampled)] = [chunk.request.prefill_end for chunk in plan.chunks if chunk.last]
    inputs = [(request, request.num_scheduled_outputs - 1) for request in plan.decodes]
    width = padded_shape.decodes if plan.chunks else size if padded else len(inputs)
    leading = LeadingInputs(rows=rows, advance=advance, steps=pack_steps(inputs, shape, limits, width))
    spans = LeadingInputs(*map(upload.add, leading))
    edits = [(place, request.edit) for place, request in enumerate(sampled) if request.edit is not None]
    return PackedStep(
        rows=Span(spans.rows.start, (len(sampled),)),
        advance=Span(spans.advance.start, (len(sampled),)),
        steps=spans.steps,
        new_blocks=upload.add(_pack_new_blocks(plan, limits.max_blocks)) if plan.new_blocks else None,
        starts=pack_starts(upload, plan.starts, shape, processors) if plan.starts else None,
        chunks=pack_chunks(upload, plan, shape, limits, padded_shape) if plan.chunks else None,
        edits=pack_edits(upload, edits, shape.vocab_size) if edits else None,
    )


def _pack_new_blocks(plan: StepPlan, max_blocks: int) -> NDArray[np.int64]:
    places = [new.request.row_index * max_blocks + new.index for new in plan.new_blocks]
    blocks = [new.request.held_table.ids[new.index] for new in plan.new_blocks]
    return np.array([places, blocks], np.int64)
