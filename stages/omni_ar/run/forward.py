"""What a step's forward is made of: its launches, from the step's inputs to the hidden states that sampling needs.

Shape legend: R rows of the batch, B rows of a captured one, S step columns, T tokens, D width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from omni.device import Device, Launch, Span, Stream
from omni_ar.attention import AttentionBackend, AttentionMetadata, PrefillRow
from omni_ar.model import ArModel, Batch, NextTokens, PayloadSink, PlacedSegment, PromptTokens
from omni_ar.run.limits import Limits
from omni_ar.run.pack import PackedChunks, PackedSegment, PackedStep
from omni_ar.run.pages import Pages
from omni_ar.run.phases import (
    Embedded,
    Kept,
    embed_inputs,
    place_chunks,
    prepare_decodes,
    restore_frames,
    run_forward,
)
from omni_ar.run.plan import Chunk, StepPlan
from omni_ar.run.state import RowState, StepBuffers, next_width
from omni_ar.run.step import PromptScores

View = Callable[[Span], Tensor]
"""An uploaded array on the device (`Uploader.view`)."""


class Forward:
    """Makes launches of the stage's buffers; launches nothing itself."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: ArModel,
        backend: AttentionBackend,
        limits: Limits,
        dtype: torch.dtype,
        state: RowState,
        buffers: StepBuffers,
    ) -> None:
        self._device = device
        self._stream = stream
        self._model = model
        self._backend = backend
        self._limits = limits
        self._dtype = dtype
        self._state = state
        self._buffers = buffers

    def decodes(self, rows_R: Tensor, columns_SR: Tensor, blocks: int, pages: Pages) -> list[Launch]:
        """Of a batch that only decodes. Its launches depend on nothing else, so they can be captured. blocks: how many of a row's
        table may be in use."""
        count, embedded = rows_R.shape[0], Embedded()
        metadata = self._metadata(count, count, blocks)
        batch = self._batch(metadata, count, pages, self._sink(count, None, None, pages))
        kept = Kept(None, self._buffers.hidden[:count])
        return [
            self._prepare(rows_R, blocks),
            Launch.of(embed_inputs, self._model, [self._nexts(columns_SR)], None, embedded),
            Launch.of(run_forward, self._model, embedded, batch, kept),
        ]

    def chunks(
        self,
        plan: StepPlan,
        packed: PackedStep,
        chunks: PackedChunks,
        view: View,
        scores: PromptScores | None,
        pages: Pages,
    ) -> list[Launch]:
        """Of a batch with chunks, behind rows that decode, if there are any."""
        buffers, decodes, embedded = self._buffers, len(plan.decodes), Embedded()
        total, prompt_start = decodes + chunks.slots.size, decodes + chunks.replayed
        launches: list[Launch] = []
        nexts: list[NextTokens] = []
        blocks = self.decode_blocks(plan) if decodes else 0
        if decodes:
            launches.append(self._prepare(view(packed.rows)[:decodes], blocks))
            nexts.append(self._nexts(view(packed.columns)[:, :decodes]))
        launches.append(self._place(chunks, decodes, total, view))
        if chunks.replayed:
            replayed, restore = self._replay(plan, chunks, view, pages)
            nexts.append(replayed)
            launches += restore
        segments = tuple(_placed(segment, view) for segment in chunks.segments)
        prompts = PromptTokens(view(chunks.columns), segments) if plan.prompts else None
        metadata = self._metadata(decodes, total, blocks, self._prefill_rows(plan), view(chunks.rows))
        sink = self._sink(decodes, chunks, view, pages)
        batch = self._batch(metadata, total, pages, sink, prompt_start, segments)
        kept = Kept(view(chunks.last), buffers.hidden[: chunks.last.size])
        if scores is not None:
            kept = Kept(kept.last_R, kept.hidden_RD, view(chunks.scored_tokens), scores.hidden_sD)
        launches.append(Launch.of(embed_inputs, self._model, nexts, prompts, embedded))
        launches.append(Launch.of(run_forward, self._model, embedded, batch, kept))
        return launches

    def decode_blocks(self, plan: StepPlan) -> int:
        """How many blocks of the decoding rows' tables may be in use."""
        longest = max(request.computed for request in plan.decodes) + 1
        return -(-longest // self._limits.block_size)

    def _prepare(self, rows_R: Tensor, blocks: int) -> Launch:
        return Launch.of(prepare_decodes, self._state, rows_R, self._limits.block_size, self._buffers, blocks)

    def _nexts(self, columns_SR: Tensor) -> NextTokens:
        count = columns_SR.shape[1]
        return NextTokens(self._buffers.ids_N[:count], columns_SR, self._buffers.codes_ND[:count])

    def _metadata(
        self,
        decodes: int,
        total: int,
        blocks: int,
        prefills: tuple[PrefillRow, ...] = (),
        prefill_rows_P4: Tensor | None = None,
    ) -> AttentionMetadata:
        buffers = self._buffers
        return AttentionMetadata(
            slots_T=buffers.slots_T[:total],
            num_decode=decodes,
            decode_block_table_RM=buffers.table_NM[:decodes, :blocks],
            decode_lengths_R=buffers.lengths_N[:decodes],
            decode_max_length=blocks * self._limits.block_size,
            prefills=prefills,
            prefill_rows_P4=prefill_rows_P4,
            block_table_NM=self._state.block_table,
        )

    def _batch(
        self,
        metadata: AttentionMetadata,
        total: int,
        pages: Pages,
        sink: PayloadSink | None,
        prompt_start: int | None = None,
        segments: Sequence[PlacedSegment] = (),
    ) -> Batch:
        positions_PT = self._buffers.positions_PT[:, :total]
        start = total if prompt_start is None else prompt_start
        return Batch(positions_PT, metadata, pages.kv, self._backend, start, segments, sink)

    def _sink(self, decodes: int, chunks: PackedChunks | None, view: View | None, pages: Pages) -> PayloadSink | None:
        hidden = pages.hidden
        emitting = decodes if self._model.shape.emits_tokens else 0
        needed = chunks is not None and chunks.payload_tokens.size > 0
        if hidden is None or not (emitting or needed):
            return None
        none = self._state.counting[:0]
        tokens_m, slots_m = none, none
        if chunks is not None and view is not None:
            tokens_m, slots_m = view(chunks.payload_tokens), view(chunks.payload_slots)
        return PayloadSink(hidden, self._buffers.slots_T[:emitting], tokens_m, slots_m)

    def _place(self, chunks: PackedChunks, start: int, end: int, view: View) -> Launch:
        positions_PT, slots_T = self._buffers.positions_PT[:, start:end], self._buffers.slots_T[start:end]
        return Launch.of(place_chunks, positions_PT, slots_T, view(chunks.positions), view(chunks.slots))

    def _replay(
        self, plan: StepPlan, chunks: PackedChunks, view: View, pages: Pages
    ) -> tuple[NextTokens, list[Launch]]:
        """Generated tokens of preempted requests as inputs, and what restores their frames."""
        model, count = self._model, chunks.replayed
        codes_nD = self._device.empty((count, next_width(model)), self._dtype, self._stream)
        launches: list[Launch] = []
        if pages.codes is not None:
            saved = [_saved(chunk) for chunk in plan.replays]
            slots_n = view(chunks.slots)[:count]
            launches.append(Launch.of(restore_frames, model, saved, slots_n, pages.codes, codes_nD))
        return NextTokens(view(chunks.ids), view(chunks.steps), codes_nD), launches

    def _prefill_rows(self, plan: StepPlan) -> tuple[PrefillRow, ...]:
        rows = []
        start = len(plan.decodes)
        for chunk in plan.chunks:
            table_M = self._state.block_table[chunk.request.row_index]
            rows.append(PrefillRow(start, chunk.length, chunk.start, table_M))
            start += chunk.length
        return tuple(rows)


def _placed(packed: PackedSegment, view: View) -> PlacedSegment:
    """A chunk's part of a segment: views of its tensors, whose second-last dimension counts its positions."""
    tensors = {name: tensor[..., packed.rows, :] for name, tensor in packed.segment.tensors.items()}
    return PlacedSegment(packed.name, view(packed.tokens), tensors)


def _saved(chunk: Chunk) -> Tensor:
    """The frames of the generated tokens that a replay runs, `[n, G]`."""
    saved = chunk.request.saved_codes
    assert saved is not None
    first = chunk.start - chunk.request.length
    return saved[first : first + chunk.length]
