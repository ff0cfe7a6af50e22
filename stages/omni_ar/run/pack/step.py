"""Packs the host inputs of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from omni.device import Span, Upload
from omni_ar.model import ArShape
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.run.pack.chunks import PackedChunks, pack_chunks, pack_steps
from omni_ar.run.pack.starts import PackedStarts, pack_starts
from omni_ar.run.plan import PaddedShape, StepPlan
from omni_ar.sampling import PackedEdits, pack_edits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PackedStep:
    """rows, advance, steps: as in `LeadingInputs`, without padding rows.

    new_blocks: `[2, k]`, places in the flattened block table and blocks that are added there; None if there are none.
    edits: host processors' edits of the logits; None if no row is constrained.
    """

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
    """The arrays at the beginning of each upload, in this order, so that a captured graph finds them there.

    rows: row of each sampled request. advance: number of tokens that the step runs for it. steps: `[X, R]`,
    conditioning of the decode rows, `step_fields` each. In a step with chunks, which replays no captured decode, its
    length differs.
    """

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
    """Fills `upload`. processors: the stage's processors. padded: rows of the batch, null rows included; None for no
    padding. padded_shape: shape of a batch with chunks; None for the smallest."""
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
    return PackedStep(
        rows=_first(spans.rows, len(sampled)),
        advance=_first(spans.advance, len(sampled)),
        steps=spans.steps,
        new_blocks=upload.add(_pack_new_blocks(plan, limits.max_blocks)) if plan.new_blocks else None,
        starts=pack_starts(upload, plan.starts, shape, processors) if plan.starts else None,
        chunks=pack_chunks(upload, plan, shape, limits, padded_shape) if plan.chunks else None,
        edits=_pack_edits(upload, plan, shape),
    )


def _first(span: Span, count: int) -> Span:
    return Span(span.start, (count,))


def _pack_edits(upload: Upload, plan: StepPlan, shape: ArShape) -> PackedEdits | None:
    edits = [(place, request.edit) for place, request in enumerate(plan.sampled) if request.edit is not None]
    return pack_edits(upload, edits, shape.vocab_size) if edits else None


def _pack_new_blocks(plan: StepPlan, max_blocks: int) -> NDArray[np.int64]:
    places = [new.request.row_index * max_blocks + new.index for new in plan.new_blocks]
    blocks = [new.request.held_table.ids[new.index] for new in plan.new_blocks]
    return np.array([places, blocks], np.int64)
