"""Packs the chunks of a step: inputs of replayed and prompt tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import PackedSpan, Upload
from omni_ar.inputs import Placeholder, Prompt
from omni_ar.model import ArShape
from omni_ar.run.limits import Limits, step_fields
from omni_ar.run.plan import BatchShape, PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest


@dataclass(frozen=True, slots=True)
class PackedEmbedding:
    """An embedding's part in one chunk. tokens: indexes into the batch's prompt tokens. Its tensors are in `StepTensors`."""

    name: str
    tokens: PackedSpan


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Inputs of a step that are on the device already. embeddings: in the order of `PackedChunks.embeddings`. saved: frames of each
    replay's tokens, int64 `[n, G]`; empty for a model without codes."""

    embeddings: tuple[Mapping[str, Tensor], ...] = ()
    saved: tuple[Tensor, ...] = ()


NO_TENSORS = StepTensors()


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """A chunk in the batch: its row, its first token in the batch, its length, and the length of the context before it."""

    row: int
    first: int
    length: int
    context: int


@dataclass(frozen=True, slots=True)
class PackedChunks:
    """The chunks of a step: `replayed` generated tokens, then prompt tokens, then padding.

    decodes: decode rows, then null rows. rows: int64 `[P, 4]`, the `PrefillSpan` of each chunk; prefills: the same, on the host.
    positions_slots: `StepBuffers.positions_slots_AT` of their tokens. payload: whether a consumer needs hidden states of
    any token. ids, steps: ids and conditioning of replays. columns, embeddings: of prompts. last: last token of each sampled row.
    scored_tokens, scored_ids: batch indexes of prompt tokens, and the prompt token after each, which is scored.
    """

    replayed: int
    decodes: PackedSpan
    rows: PackedSpan
    prefills: tuple[PrefillSpan, ...]
    positions_slots: PackedSpan
    payload: bool
    ids: PackedSpan
    steps: PackedSpan
    columns: PackedSpan
    embeddings: tuple[PackedEmbedding, ...]
    last: PackedSpan
    scored_tokens: PackedSpan
    scored_ids: PackedSpan


def pack_chunks(
    upload: Upload, plan: StepPlan, shape: ArShape, limits: Limits, batch_shape: BatchShape
) -> PackedChunks:
    chunks, prompts = plan.chunks, plan.prompts
    replays = [(chunk.request, index) for chunk in plan.replays for index in _outputs(chunk)]
    # The start of each chunk in the batch.
    starts = batch_shape.decodes + np.cumsum([0, *(chunk.length for chunk in chunks)])
    ends = [int(end) for chunk, end in zip(chunks, starts[1:], strict=True) if chunk.last]
    scored = [(chunk, scored_positions(chunk), start) for chunk, start in zip(chunks, starts[:-1], strict=True)]
    decodes = np.full(batch_shape.decodes, limits.null_row)
    decodes[: len(plan.decodes)] = [request.row_index for request in plan.decodes]
    prefills = tuple(
        PrefillSpan(c.request.row_index, int(start), c.length, c.start)
        for c, start in zip(chunks, starts[:-1], strict=True)
    )
    rows = np.zeros((batch_shape.chunks, 4), np.int64)
    rows[: len(chunks)] = [(span.row, span.first, span.length, span.context) for span in prefills]
    columns = [np.empty((len(shape.prompt_columns), 0), np.int64)]
    columns += [_prompt(c).columns[:, c.start : c.start + c.length] for c in prompts]
    # Padding has position 0 and writes to the null block.
    positions_slots = np.zeros((shape.position_axes + 2, batch_shape.tokens), np.int64)
    for chunk, start in zip(chunks, starts[:-1] - batch_shape.decodes, strict=True):
        _set_positions_slots(
            positions_slots[:, start : start + chunk.length], chunk, shape.emits_tokens, limits.block_size
        )
    return PackedChunks(
        replayed=len(replays),
        decodes=upload.add(decodes),
        rows=upload.add(rows),
        prefills=prefills,
        positions_slots=upload.add(positions_slots),
        payload=bool(positions_slots[-1].any()),
        ids=upload.add(np.array([request.outputs[index] for request, index in replays], np.int64)),
        steps=upload.add(pack_steps(replays, shape, limits, len(replays))),
        columns=upload.add(np.concatenate(columns, axis=1)),
        embeddings=tuple(_pack_embeddings(upload, prompts)),
        last=upload.add(np.array([*range(len(plan.decodes)), *(end - 1 for end in ends)], np.int64)),
        scored_tokens=upload.add(np.concatenate([n - chunk.start + start for chunk, n, start in scored])),
        scored_ids=upload.add(np.concatenate([_prompt(chunk).columns[0, n + 1] for chunk, n, _ in scored])),
    )


def scored_positions(chunk: PrefillChunk) -> NDArray[np.int64]:
    """Positions of the chunk whose next token is a prompt token to be scored."""
    request = chunk.request
    if chunk.replay or request.sampling.prompt_logprobs is None:
        return np.empty(0, np.int64)
    end = min(chunk.start + chunk.length, request.length - 1)
    return np.arange(max(chunk.start, request.num_scored_tokens), end)


def pack_steps(
    inputs: Sequence[tuple[ArRequest, int]], shape: ArShape, limits: Limits, width: int
) -> NDArray[np.int64]:
    """Conditioning of the steps whose inputs are these generated tokens, `[X, width]`, padded with zeros and null vectors."""
    fields = np.zeros((step_fields(shape), width), np.int64)
    if shape.step_width:
        fields[-1, len(inputs) :] = limits.null_vector
    if shape.conditioned:
        for column, (request, index) in enumerate(inputs):
            fields[:, column] = request.step(index)
    return fields


def _pack_embeddings(upload: Upload, prompts: Sequence[PrefillChunk]) -> Iterator[PackedEmbedding]:
    start = 0
    for chunk in prompts:
        for placeholder, part in placeholders_in(chunk):
            tokens = upload.add(placeholder.positions[part] - chunk.start + start)
            yield PackedEmbedding(placeholder.name, tokens)
        start += chunk.length


def step_tensors(plan: StepPlan) -> StepTensors:
    """The device tensors that the chunks of a step read."""
    embeddings = [
        chunk.request.embeddings[placeholder.name, placeholder.index].part(placeholder.name, part)
        for chunk in plan.prompts
        for placeholder, part in placeholders_in(chunk)
    ]
    saved = [_saved(chunk) for chunk in plan.replays if chunk.request.saved_codes is not None]
    return StepTensors(tuple(embeddings), tuple(saved))


def _saved(chunk: PrefillChunk) -> Tensor:
    saved = chunk.request.saved_codes
    assert saved is not None
    first = chunk.start - chunk.request.length
    return saved[first : first + chunk.length]


def placeholders_in(chunk: PrefillChunk) -> Iterator[tuple[Placeholder, slice]]:
    """Placeholders with positions in a prompt's chunk, each with the range of these positions."""
    for placeholder in _prompt(chunk).placeholders:
        first, last = np.searchsorted(placeholder.positions, (chunk.start, chunk.start + chunk.length)).tolist()
        if first < last:
            yield placeholder, slice(first, last)


def _set_positions_slots(
    positions_slots_AT: NDArray[np.int64], chunk: PrefillChunk, emits_tokens: bool, block_size: int
) -> None:
    """Positions, KV slots and payload slots of a chunk's tokens."""
    positions_slots_AT[:-2] = _positions(chunk)
    table, tokens = chunk.request.held_table, np.arange(chunk.start, chunk.start + chunk.length)
    positions_slots_AT[-2] = table.slots(tokens, block_size)
    needed = _needed(chunk, emits_tokens) - chunk.start
    positions_slots_AT[-1, needed] = positions_slots_AT[-2, needed]


def _outputs(chunk: PrefillChunk) -> range:
    first = chunk.start - chunk.request.length
    return range(first, first + chunk.length)


def _positions(chunk: PrefillChunk) -> NDArray[np.int64]:
    """Rotary positions `[P, length]`."""
    prompt = _prompt(chunk)
    if not chunk.replay:
        return prompt.positions[:, chunk.start : chunk.start + chunk.length]
    after = np.array(_outputs(chunk)) + prompt.next_position
    return np.broadcast_to(after, (len(prompt.positions), chunk.length))


def _needed(chunk: PrefillChunk, emits_tokens: bool) -> NDArray[np.int64]:
    """Positions of the chunk whose hidden states a consumer needs."""
    end = chunk.start + chunk.length
    newest = np.array([end - 1] if emits_tokens and chunk.last else [], np.int64)
    if chunk.replay or not chunk.request.wants_hidden:
        return newest
    positions = _prompt(chunk).payload_positions
    first, last = np.searchsorted(positions, (chunk.start, end))
    return np.union1d(positions[first:last], newest)


def _prompt(chunk: PrefillChunk) -> Prompt:
    assert chunk.request.prompt is not None
    return chunk.request.prompt
