"""Tokens of requests that are not decoding yet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omni.device import Span, Upload
from omni_ar.inputs import Prompt
from omni_ar.model import ArShape
from omni_ar.run.plan import Chunk, StepPlan
from omni_ar.run.request import ArRequest, ReadySegment


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """A segment's part in one chunk. tokens: indexes into the batch's prompt tokens. rows: which of the segment's."""

    name: str
    tokens: Span
    segment: ReadySegment
    rows: slice


@dataclass(frozen=True, slots=True)
class PackedChunks:
    """The chunks of a step: `replayed` generated tokens, then prompt tokens.

    rows: int64 `[P, 4]`, row, first token in the batch, length and context of each chunk. positions, slots: of all of their tokens.
    ids, steps: of replays. columns, segments: of prompts. last: last token of each sampled row.
    payload_tokens, payload_slots: batch index and page slot of hidden states that are needed elsewhere.
    scored_tokens, scored_ids: batch index of prompt tokens, and the prompt token after each, whose probability is asked for.
    """

    replayed: int
    rows: Span
    positions: Span
    slots: Span
    ids: Span
    steps: Span
    columns: Span
    segments: tuple[PackedSegment, ...]
    last: Span
    payload_tokens: Span
    payload_slots: Span
    scored_tokens: Span
    scored_ids: Span


def pack_chunks(upload: Upload, plan: StepPlan, shape: ArShape, block_size: int) -> PackedChunks:
    chunks, prompts, decodes = plan.chunks, plan.prompts, len(plan.decodes)
    replays = [(chunk.request, index) for chunk in plan.replays for index in _outputs(chunk)]
    # Where each chunk begins in the batch.
    starts = decodes + np.cumsum([0, *(chunk.length for chunk in chunks)])
    ends = [int(end) for chunk, end in zip(chunks, starts[1:], strict=True) if chunk.last]
    rows = [(c.request.row_index, start, c.length, c.start) for c, start in zip(chunks, starts[:-1], strict=True)]
    needed = [_needed(chunk, shape.emits_tokens) for chunk in chunks]
    places = [n - chunk.start + start for n, chunk, start in zip(needed, chunks, starts[:-1], strict=True)]
    scored = [(chunk, scored_positions(chunk), start) for chunk, start in zip(chunks, starts[:-1], strict=True)]
    pages = [chunk.request.held_table.slots(n, block_size) for n, chunk in zip(needed, chunks, strict=True)]
    return PackedChunks(
        replayed=len(replays),
        rows=upload.add(np.array(rows, np.int64)),
        positions=upload.add(np.concatenate([_positions(chunk) for chunk in chunks], axis=1)),
        slots=upload.add(
            np.concatenate([chunk.request.held_table.slots(_tokens(chunk), block_size) for chunk in chunks])
        ),
        ids=upload.add(np.array([request.outputs[index] for request, index in replays], np.int64)),
        steps=upload.add(step_columns(replays, len(shape.step_columns))),
        columns=upload.add(_columns(prompts, len(shape.prompt_columns))),
        segments=tuple(_pack_segments(upload, prompts)),
        last=upload.add(np.array([*range(decodes), *(end - 1 for end in ends)], np.int64)),
        payload_tokens=upload.add(np.concatenate(places)),
        payload_slots=upload.add(np.concatenate(pages)),
        scored_tokens=upload.add(np.concatenate([n - chunk.start + start for chunk, n, start in scored])),
        scored_ids=upload.add(np.concatenate([_prompt(chunk).columns[0, n + 1] for chunk, n, _ in scored])),
    )


def scored_positions(chunk: Chunk) -> NDArray[np.int64]:
    """Positions of the chunk whose next token is of the prompt too, and to be scored."""
    request = chunk.request
    if chunk.replay or request.sampling.prompt_logprobs is None:
        return np.empty(0, np.int64)
    end = min(chunk.start + chunk.length, request.length - 1)
    return np.arange(max(chunk.start, request.scored), end)


def step_columns(inputs: Sequence[tuple[ArRequest, int]], count: int) -> NDArray[np.int64]:
    """Conditioning `[S, n]` of steps whose inputs are these generated tokens."""
    columns = np.empty((count, len(inputs)), np.int64)
    if count:
        for place, (request, index) in enumerate(inputs):
            columns[:, place] = request.step_column(index)
    return columns


def _pack_segments(upload: Upload, prompts: Sequence[Chunk]) -> Iterator[PackedSegment]:
    start = 0
    for chunk in prompts:
        for slot in _prompt(chunk).segments:
            first, last = np.searchsorted(slot.positions, (chunk.start, chunk.start + chunk.length)).tolist()
            if first < last:
                segment = chunk.request.segments[slot.name, slot.index]
                tokens = upload.add(slot.positions[first:last] - chunk.start + start)
                yield PackedSegment(slot.name, tokens, segment, slice(first, last))
        start += chunk.length


def _tokens(chunk: Chunk) -> NDArray[np.int64]:
    return np.arange(chunk.start, chunk.start + chunk.length)


def _outputs(chunk: Chunk) -> range:
    """Which generated tokens a replay runs."""
    first = chunk.start - chunk.request.length
    return range(first, first + chunk.length)


def _positions(chunk: Chunk) -> NDArray[np.int64]:
    """Rotary positions `[P, length]`."""
    prompt = _prompt(chunk)
    if not chunk.replay:
        return prompt.positions[:, chunk.start : chunk.start + chunk.length]
    after = np.array(_outputs(chunk)) + prompt.next_position
    return np.broadcast_to(after, (len(prompt.positions), chunk.length))


def _columns(prompts: Sequence[Chunk], count: int) -> NDArray[np.int64]:
    parts = [np.empty((count, 0), np.int64)]
    for chunk in prompts:
        parts.append(_prompt(chunk).columns[:, chunk.start : chunk.start + chunk.length])
    return np.concatenate(parts, axis=1)


def _needed(chunk: Chunk, emits_tokens: bool) -> NDArray[np.int64]:
    """Positions of the chunk whose hidden states a consumer needs."""
    end = chunk.start + chunk.length
    newest = np.array([end - 1] if emits_tokens and chunk.last else [], np.int64)
    if chunk.replay or not chunk.request.wants_hidden:
        return newest
    positions = _prompt(chunk).payload_positions
    first, last = np.searchsorted(positions, (chunk.start, end))
    return np.union1d(positions[first:last], newest)


def _prompt(chunk: Chunk) -> Prompt:
    assert chunk.request.prompt is not None
    return chunk.request.prompt
