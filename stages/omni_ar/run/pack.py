"""Packs a plan into host arrays: all host inputs of a step's phases, in one copy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from omni.device import PackedSpan, Upload
from omni_ar.drafters import Drafter
from omni_ar.model import ArShape
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.run.pack_chunks import PackedChunks, pack_chunks, pack_steps
from omni_ar.run.pack_starts import PackedStarts, pack_starts
from omni_ar.run.plan import BatchShape, StepPlan
from omni_ar.sampling.edits import PackedEdits, pack_edits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PackedStep:
    """rows, advance, steps: as in `LeadingInputs`, without padding rows. new_blocks: `[2, k]`, indices in the flattened block table
    and blocks that are added there; None if there are none. edits: of the logits; None if no row is constrained."""

    rows: PackedSpan
    advance: PackedSpan
    steps: PackedSpan
    new_blocks: PackedSpan | None
    starts: PackedStarts | None
    chunks: PackedChunks | None
    edits: PackedEdits | None

    def repeated(self) -> "PackedStep":
        """The inputs that an unchanged batch of decode rows reuses: without new blocks and edits, which apply once."""
        return replace(self, new_blocks=None, edits=None)


class LeadingInputs(NamedTuple, Generic[T]):
    """The arrays at the beginning of each upload, in this order, so that a captured graph finds them there. rows: row of each
    sampled request. advance: number of tokens that the step runs for it. steps: `[X, R]`, conditioning of the decode rows,
    `step_fields` each; of another length in a step with chunks, which replays no captured decode."""

    rows: T
    advance: T
    steps: T


def captured_spans(rows: int, fields: int) -> LeadingInputs[PackedSpan]:
    """Places of the inputs of a captured graph for `rows` rows. fields: `step_fields`."""
    shapes = LeadingInputs[tuple[int, ...]](rows=(rows,), advance=(rows,), steps=(fields, rows))
    starts = accumulate((prod(shape) for shape in shapes), initial=0)
    return LeadingInputs(*(PackedSpan(start, shape) for start, shape in zip(starts, shapes, strict=False)))


def pack_step(
    upload: Upload,
    plan: StepPlan,
    *,
    limits: Limits,
    shape: ArShape,
    processors: Sequence[NamedProcessor],
    padded_rows: int | None = None,
    batch_shape: BatchShape | None = None,
    drafter: Drafter | None = None,
    draft_rate: int = 0,
) -> PackedStep:
    """Fills `upload`. padded_rows: rows of the batch, null rows included; None for no padding. batch_shape: None for no
    padding. draft_rate: `DraftFields.rate` of rows that start."""
    batch_shape = batch_shape or plan.shape
    sampled = plan.sampled
    size = len(sampled) if padded_rows is None else padded_rows
    rows, advance = np.full(size, limits.null_row), np.ones(size, np.int64)
    rows[: len(sampled)] = [request.row_index for request in sampled]
    advance[len(plan.decodes) : len(sampled)] = [chunk.request.prefill_end for chunk in plan.chunks if chunk.last]
    inputs = [(request, request.num_scheduled_outputs - 1) for request in plan.decodes]
    width = batch_shape.decodes if plan.chunks else size if padded_rows else len(inputs)
    leading = LeadingInputs(rows=rows, advance=advance, steps=pack_steps(inputs, shape, limits, width))
    spans = LeadingInputs(*map(upload.add, leading))
    edits = [(row, request.edit) for row, request in enumerate(sampled) if request.edit is not None]
    return PackedStep(
        rows=PackedSpan(spans.rows.start, (len(sampled),)),
        advance=PackedSpan(spans.advance.start, (len(sampled),)),
        steps=spans.steps,
        new_blocks=upload.add(_pack_new_blocks(plan, limits.max_blocks)) if plan.new_blocks else None,
        starts=pack_starts(upload, plan.starts, shape, processors, limits, drafter, draft_rate)
        if plan.starts
        else None,
        chunks=pack_chunks(upload, plan, shape, limits, batch_shape) if plan.chunks else None,
        edits=pack_edits(upload, edits, shape.vocab_size) if edits else None,
    )


def _pack_new_blocks(plan: StepPlan, max_blocks: int) -> NDArray[np.int64]:
    indices = [new.request.row_index * max_blocks + new.index for new in plan.new_blocks]
    blocks = [new.request.held_table.ids[new.index] for new in plan.new_blocks]
    return np.array([indices, blocks], np.int64)
