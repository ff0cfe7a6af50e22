"""The runner: `execute_model` up to the hidden states, `sample_tokens` from there, split at the token point."""

from dataclasses import replace

import torch
from torch import Tensor

from omni.device import Device, HostRing, Uploader
from omni_ar.attention import AttentionBackend, AttentionMetadata, PrefillRow
from omni_ar.model import ArModel, Batch, NextTokens, PayloadSink, PlacedSegment, PromptTokens
from omni_ar.run.limits import Limits
from omni_ar.run.pack import PackedChunks, PackedSegment, PackedStarts, PackedStep, pack_step
from omni_ar.run.pages import Pages
from omni_ar.run.phases import (
    Start,
    compute_logits,
    copy_tokens,
    extend_tables,
    place_chunks,
    post_update,
    predict_codes,
    prepare_decodes,
    restore_frames,
    run_forward,
    sample_rows,
    start_rows,
)
from omni_ar.run.plan import Chunk, StepPlan
from omni_ar.run.state import RowState, StepBuffers, next_width
from omni_ar.run.step import PayloadHandoff, SampledStep, StepContext, TokenHandoff, flags_of, snapshot

_RING = 4
"""Steps whose host slots and handoff buffers are apart: more than may be in flight."""


class Runner:
    """Owns the stage's device memory and launches its steps. Decides nothing."""

    def __init__(
        self,
        name: str,
        device: Device,
        model: ArModel,
        backend: AttentionBackend,
        limits: Limits,
        dtype: torch.dtype,
        priority: int,
    ) -> None:
        self.device = device
        self.stream = device.stream(name, priority=priority)
        self._copy_stream = device.stream(f"{name}-copy", priority=priority)
        self._model = model
        self._backend = backend
        self._limits = limits
        self._dtype = dtype
        self._state = RowState.allocate(device, model, limits.rows, limits.max_blocks, dtype)
        self._buffers = StepBuffers.allocate(device, model, limits, _RING, dtype)
        self._pages: Pages | None = None
        self._uploader = Uploader(device, self.stream, limits.upload_words, _RING)
        self._downloads = HostRing(device, (limits.rows, 2), torch.int64, _RING)
        self._steady: tuple[tuple[int, ...], PackedStep] | None = None

    def allocate(self, num_blocks: int) -> None:
        """Allocates KV and payload pages, the null block besides; replaces those that were there."""
        self._pages = None  # the old ones go before the new ones come
        self._pages = Pages.allocate(self.device, self._model, num_blocks, self._limits.block_size, self._dtype)

    @property
    def pages(self) -> "Pages":
        """Raises RuntimeError before `allocate`."""
        if self._pages is None:
            raise RuntimeError("the stage's pages are not allocated yet")
        return self._pages

    @property
    def ready(self) -> bool:
        """Whether a step could be launched now without touching a host slot that is still in use."""
        return self._uploader.ready and self._downloads.ready

    def forget_batch(self) -> None:
        """After a step that failed half-way: the next one takes nothing over from it."""
        self._steady = None

    def execute_model(self, plan: StepPlan) -> StepContext:
        """Launches inputs and forward of the planned rows."""
        rows = tuple(snapshot(request) for request in plan.sampled)
        packed = self._pack(plan, tuple(scheduled.row.index for scheduled in rows))
        view, launch = self._uploader.view, self.device.launch
        rows_R = view(packed.rows)
        if packed.starts is not None:
            launch(self.stream, start_rows, self._state, self._start(packed.starts))
        if packed.grown is not None:
            launch(self.stream, extend_tables, self._state.block_table, view(packed.grown))
        self._forward(plan, packed, rows_R)
        advance_R = view(packed.chunks.advance) if packed.chunks else self._state.ones[: len(rows)]
        return StepContext(plan.step, rows, rows_R, advance_R, flags_of(plan.sampled))

    def sample_tokens(self, context: StepContext) -> SampledStep:
        """Launches logits and sampling, hands the tokens over, then launches what may run behind the handoff."""
        launch, state, count = self.device.launch, self._state, len(context.rows)
        hidden_RD, logits_RV = self._buffers.hidden_ND[:count], self._buffers.logits_NV[:count]
        handoff_R2 = self._buffers.handoff[context.step % _RING, :count]
        if not count:
            return SampledStep((), self._hand_over(handoff_R2), None, self.device.record(self.stream))
        launch(self.stream, compute_logits, self._model, hidden_RD, logits_RV)
        launch(self.stream, sample_rows, state, logits_RV, context.rows_R, context.flags, handoff_R2)
        tokens = self._hand_over(handoff_R2)
        launch(self.stream, post_update, state, context.rows_R, context.advance_R)
        payload = self._defer(context, hidden_RD, handoff_R2)
        return SampledStep(context.rows, tokens, payload, self.device.record(self.stream))

    def _pack(self, plan: StepPlan, rows: tuple[int, ...]) -> PackedStep:
        """Uploads what the step needs from the host."""
        changed = plan.chunks or plan.grown or self._model.shape.step_columns
        if self._steady is not None and self._steady[0] == rows and not changed:
            return self._steady[1]  # same rows as the step before: nothing to copy
        upload = self._uploader.begin()
        try:
            packed = pack_step(upload, plan, self._limits, self._model.shape)
        except Exception:
            self._uploader.cancel(upload)
            raise
        self._uploader.launch(upload)
        # Nothing but `rows` of a batch of decodes is used again, so blocks that were added do not matter.
        self._steady = None if plan.chunks or self._model.shape.step_columns else (rows, replace(packed, grown=None))
        return packed

    def _hand_over(self, handoff_R2: Tensor) -> TokenHandoff:
        # The token point: the copy is enqueued here, on its own stream, before anything that follows on the main one.
        self.device.wait(self._copy_stream, self.device.record(self.stream))
        slot = self._downloads.advance()
        slot.take()
        try:
            self.device.launch(self._copy_stream, copy_tokens, slot.tensor[: handoff_R2.shape[0]], handoff_R2)
        finally:
            ready = self.device.record(self._copy_stream)
            slot.guard(ready)
        return TokenHandoff(slot, ready)

    def _defer(self, context: StepContext, hidden_RD: Tensor, handoff_R2: Tensor) -> PayloadHandoff | None:
        pages = self.pages
        hidden = pages.hidden if any(scheduled.emits_hidden for scheduled in context.rows) else None
        if pages.codes is not None:
            self.device.launch(
                self.stream,
                predict_codes,
                self._model,
                self._state,
                hidden_RD,
                context.rows_R,
                handoff_R2,
                context.flags.any_random,
                self._limits.block_size,
                pages.codes,
            )
        elif hidden is None:
            return None
        # Pages are written by the step's own phases, so their event belongs on its stream; nothing waits for it there.
        return PayloadHandoff(hidden, pages.codes, self.device.record(self.stream))

    def _start(self, starts: PackedStarts) -> Start:
        view = self._uploader.view
        return Start(
            view(starts.ints),
            view(starts.floats),
            view(starts.stops),
            view(starts.table),
            view(starts.seen),
            view(starts.suppressed),
        )

    def _forward(self, plan: StepPlan, packed: PackedStep, rows_R: Tensor) -> None:
        buffers, view, decodes, chunks = self._buffers, self._uploader.view, len(plan.decodes), packed.chunks
        pages = self.pages
        decode_blocks = self._prepare_decodes(plan, rows_R[:decodes]) if decodes else 0
        nexts = (
            [NextTokens(buffers.ids_N[:decodes], view(packed.columns), buffers.codes_ND[:decodes])] if decodes else []
        )
        total, prompt_start = decodes, decodes
        segments: tuple[PlacedSegment, ...] = ()
        sink = None
        if chunks is not None:
            total += chunks.slots.size
            prompt_start += chunks.replayed
            self._place(chunks, decodes, total)
            if chunks.replayed:
                nexts.append(self._replay(plan, chunks))
            segments = tuple(self._placed(segment) for segment in chunks.segments)
            if pages.hidden is not None and chunks.payload_tokens.size:
                sink = PayloadSink(pages.hidden, view(chunks.payload_tokens), view(chunks.payload_slots))
        attention = AttentionMetadata(
            slots_T=buffers.slots_T[:total],
            num_decode=decodes,
            decode_block_table_RM=buffers.table_NM[:decodes, :decode_blocks],
            decode_lengths_R=buffers.lengths_N[:decodes],
            decode_max_length=decode_blocks * self._limits.block_size,
            prefills=self._prefill_rows(plan),
        )
        batch = Batch(buffers.positions_PT[:, :total], attention, pages.kv, self._backend, prompt_start, segments, sink)
        prompts = PromptTokens(view(chunks.columns), segments) if chunks is not None and plan.prompts else None
        last_R = view(chunks.last) if chunks is not None else self._state.counting[:decodes]
        hidden_RD = buffers.hidden_ND[: rows_R.shape[0]]
        self.device.launch(self.stream, run_forward, self._model, nexts, prompts, batch, last_R, hidden_RD)

    def _place(self, chunks: PackedChunks, start: int, end: int) -> None:
        self.device.launch(
            self.stream,
            place_chunks,
            self._buffers.positions_PT[:, start:end],
            self._buffers.slots_T[start:end],
            self._uploader.view(chunks.positions),
            self._uploader.view(chunks.slots),
        )

    def _placed(self, packed: PackedSegment) -> PlacedSegment:
        """A chunk's part of a segment: views of its tensors, whose second-last dimension counts its positions."""
        tensors = {name: tensor[..., packed.rows, :] for name, tensor in packed.segment.tensors.items()}
        return PlacedSegment(packed.name, self._uploader.view(packed.tokens), tensors)

    def _replay(self, plan: StepPlan, chunks: PackedChunks) -> NextTokens:
        """Generated tokens of preempted requests as inputs."""
        view = self._uploader.view
        model, pages, count = self._model, self.pages, chunks.replayed
        codes_nD = self.device.empty((count, next_width(model)), self._dtype, self.stream)
        if pages.codes is not None:
            saved = [_saved(chunk) for chunk in plan.replays]
            slots_n = view(chunks.slots)[:count]
            self.device.launch(self.stream, restore_frames, model, saved, slots_n, pages.codes, codes_nD)
        return NextTokens(view(chunks.ids), view(chunks.steps), codes_nD)

    def _prepare_decodes(self, plan: StepPlan, rows_R: Tensor) -> int:
        """Launches the decode rows' inputs; returns how many blocks of their tables may be in use."""
        longest = max(request.computed for request in plan.decodes) + 1
        blocks = -(-longest // self._limits.block_size)
        self.device.launch(
            self.stream, prepare_decodes, self._state, rows_R, self._limits.block_size, self._buffers, blocks
        )
        return blocks

    def _prefill_rows(self, plan: StepPlan) -> tuple[PrefillRow, ...]:
        rows = []
        start = len(plan.decodes)
        for chunk in plan.chunks:
            table_M = self._state.block_table[chunk.request.row_index]
            rows.append(PrefillRow(start, chunk.length, chunk.start, table_M))
            start += chunk.length
        return tuple(rows)


def _saved(chunk: Chunk) -> Tensor:
    """The frames of the generated tokens that a replay runs, `[n, G]`."""
    saved = chunk.request.saved_codes
    assert saved is not None
    first = chunk.start - chunk.request.length
    return saved[first : first + chunk.length]
