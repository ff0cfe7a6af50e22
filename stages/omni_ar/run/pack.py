"""From a plan to packed host arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omni.device import Span, Upload
from omni_ar.inputs import Prompt
from omni_ar.run.blocks import NULL_BLOCK, slots_of
from omni_ar.run.limits import MAX_STOP_IDS
from omni_ar.run.request import ArRequest, ReadySegment
from omni_ar.run.scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """A segment of one prompt. tokens: its indexes into the batch's prompt tokens."""

    name: str
    tokens: Span
    segment: ReadySegment


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """The part of a step that only steps with prompts have. advance, last: for all rows of the batch."""

    columns: Span
    positions: Span
    slots: Span
    advance: Span
    last: Span
    segments: tuple[PackedSegment, ...]
    payload_tokens: Span
    payload_slots: Span
    ints: Span
    floats: Span
    stops: Span
    table: Span
    seen: Span
    suppressed: Span


@dataclass(frozen=True, slots=True)
class PackedStep:
    """rows: row of each of the batch's requests. columns: step columns of the decode rows `[S, R]`."""

    rows: Span
    columns: Span
    prompts: PackedPrompts | None


def pack_step(upload: Upload, plan: StepPlan, max_blocks: int, block_size: int, step_columns: int) -> PackedStep:
    """Fills `upload` with everything the plan's phases need from the host."""
    rows = upload.add(np.array([_row(request) for request in plan.requests], np.int64))
    columns = np.empty((step_columns, len(plan.decodes)), np.int64)
    if step_columns:
        for index, request in enumerate(plan.decodes):
            columns[:, index] = request.step_column()
    return PackedStep(
        rows, upload.add(columns), _pack_prompts(upload, plan, max_blocks, block_size) if plan.prefills else None
    )


def _pack_prompts(upload: Upload, plan: StepPlan, max_blocks: int, block_size: int) -> PackedPrompts:
    new = plan.prefills
    prompts = [_prompt(request) for request in new]
    decodes = len(plan.decodes)
    lengths = np.array([prompt.length for prompt in prompts], np.int64)
    starts = np.cumsum(lengths) - lengths
    slots = [slots_of(r.blocks, np.arange(p.length), block_size) for r, p in zip(new, prompts, strict=True)]
    needed = [
        p.payload_positions if r.wants_hidden else p.payload_positions[:0] for r, p in zip(new, prompts, strict=True)
    ]
    seen = [
        p.penalized_ids if r.sampling.repetition_penalty != 1.0 else p.penalized_ids[:0]
        for r, p in zip(new, prompts, strict=True)
    ]
    suppressed = [np.array(r.sampling.suppress_token_ids, np.int64) for r in new]
    return PackedPrompts(
        columns=upload.add(np.concatenate([p.columns for p in prompts], axis=1)),
        positions=upload.add(np.concatenate([p.positions for p in prompts], axis=1)),
        slots=upload.add(np.concatenate(slots)),
        advance=upload.add(np.concatenate([np.ones(decodes, np.int64), lengths])),
        last=upload.add(np.concatenate([np.arange(decodes), decodes + starts + lengths - 1])),
        segments=tuple(_pack_segments(upload, new, starts)),
        payload_tokens=upload.add(np.concatenate([n + decodes + s for n, s in zip(needed, starts, strict=True)])),
        payload_slots=upload.add(np.concatenate([s[n] for s, n in zip(slots, needed, strict=True)])),
        ints=upload.add(np.array([_ints(r) for r in new], np.int64)),
        floats=upload.add_floats(np.array([_floats(r) for r in new], np.float64)),
        stops=upload.add(_padded([np.array(r.sampling.stop_token_ids, np.int64) for r in new], MAX_STOP_IDS, -1)),
        table=upload.add(_padded([r.blocks for r in new], max_blocks, NULL_BLOCK)),
        seen=upload.add(_pairs(new, seen)),
        suppressed=upload.add(_pairs(new, suppressed)),
    )


def _pack_segments(upload: Upload, new: Sequence[ArRequest], starts: NDArray[np.int64]) -> Iterator[PackedSegment]:
    for request, start in zip(new, starts, strict=True):
        for slot in _prompt(request).segments:
            segment = request.segments[slot.name, slot.index]
            yield PackedSegment(slot.name, upload.add(slot.positions + start), segment)


def _ints(request: ArRequest) -> tuple[int, ...]:
    sampling, prompt = request.sampling, _prompt(request)
    assert sampling.top_k is not None
    assert sampling.seed is not None
    delta = prompt.next_position - prompt.length
    return (_row(request), delta, request.max_tokens, sampling.top_k, sampling.seed, 0)


def _floats(request: ArRequest) -> tuple[float, ...]:
    sampling = request.sampling
    assert sampling.temperature is not None
    assert sampling.top_p is not None
    assert sampling.repetition_penalty is not None
    return (sampling.temperature, sampling.top_p, sampling.repetition_penalty)


def _pairs(new: Sequence[ArRequest], ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    rows = np.repeat([_row(request) for request in new], [len(i) for i in ids])
    return np.stack([rows.astype(np.int64), np.concatenate(ids)])


def _padded(arrays: Sequence[NDArray[np.int64]], width: int, fill: int) -> NDArray[np.int64]:
    table = np.full((len(arrays), width), fill, np.int64)
    for row, array in zip(table, arrays, strict=True):
        row[: len(array)] = array
    return table


def _row(request: ArRequest) -> int:
    assert request.row is not None
    return request.row.index


def _prompt(request: ArRequest) -> Prompt:
    assert request.prompt is not None
    return request.prompt
