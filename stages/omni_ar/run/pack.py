"""Packs a plan into host arrays: all host inputs of a step's phases, in one copy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import PackedSpan, Upload
from omni.errors import ReturnedError, type_of
from omni.stage import method_name
from omni_ar.drafters import Drafter
from omni_ar.inputs import Placeholder, Prompt
from omni_ar.kernels.step.draft_state import DraftFields
from omni_ar.kernels.step.state import RowFields
from omni_ar.model import ArShape
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits, step_fields
from omni_ar.run.plan import BatchShape, PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.sampling.edits import PackedEdits, pack_edits
from omni_ar.sampling.pack import PackedSampling, StartingRow, pack_sampling


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


T = TypeVar("T")

_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class PackedDrafts:
    """fields: `DraftState.fields` of starting rows. text: `[n, length]`, their tokens, then -1."""

    fields: PackedSpan
    text: PackedSpan


@dataclass(frozen=True, slots=True)
class PackedStarts:
    """rows: indexes of the rows. fields: their `RowState.fields`. table: their blocks. drafts: None without a drafter."""

    rows: PackedSpan
    fields: PackedSpan
    table: PackedSpan
    sampling: PackedSampling
    drafts: PackedDrafts | None = None


def pack_starts(
    upload: Upload,
    new: Sequence[ArRequest],
    shape: ArShape,
    processors: Sequence[NamedProcessor],
    limits: Limits,
    drafter: Drafter | None,
    draft_rate: int,
) -> PackedStarts:
    """drafter: None for a stage without one. draft_rate: as for `pack_step`."""
    return PackedStarts(
        rows=upload.add(np.array([request.row_index for request in new], np.int64)),
        fields=upload.add(np.array([_fields(request) for request in new], np.int64)),
        table=upload.add(np.stack([request.held_table.ids for request in new])),
        sampling=pack_sampling(upload, [_starting(request, shape) for request in new], shape.vocab_size, processors),
        drafts=_pack_drafts(upload, new, limits, drafter, draft_rate) if drafter is not None else None,
    )


def _pack_drafts(
    upload: Upload, new: Sequence[ArRequest], limits: Limits, drafter: Drafter, draft_rate: int
) -> PackedDrafts:
    texts = [_text(request, drafter)[: limits.max_model_len] for request in new]
    padded = np.full((len(texts), max(map(len, texts))), -1, np.int64)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text
    start = DraftFields(cap=0, rate=draft_rate, proposed=0, offered=0, found=1)
    fields = np.array([start._replace(cap=most_drafts(request, limits)) for request in new], np.int64)
    return PackedDrafts(fields=upload.add(fields), text=upload.add(padded))


def _text(request: ArRequest, drafter: Drafter) -> NDArray[np.int64]:
    """Prompt and output of a request, then the text that may follow."""
    assert request.prompt is not None
    predicted: object = drafter.predicted_tokens(request.for_drafter, request.outputs) if not request.undrafted else ()
    try:
        ids = np.array([*request.outputs, *predicted], np.int64)  # type: ignore[misc]
    except (TypeError, ValueError, OverflowError) as error:
        code = drafter.predicted_tokens
        name = method_name(code, "predicted_tokens")
        raise ReturnedError(
            f"{name} gave {type_of(predicted)}, no token ids ({error}): return a list of int", code
        ) from error
    return np.concatenate([request.prompt.columns[0], ids])


def most_drafts(request: ArRequest, limits: Limits) -> int:
    """Maximum drafts that a step verifies for the request."""
    return 0 if request.undrafted else limits.drafts


def _fields(request: ArRequest) -> RowFields[int]:
    assert request.prompt is not None
    assert request.row is not None
    return RowFields(
        last=0,
        length=0,
        delta=request.prompt.next_position - request.prompt.length,
        outputs=len(request.outputs),
        limit=request.max_tokens,
        active=1,
        row=request.row.index,
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
