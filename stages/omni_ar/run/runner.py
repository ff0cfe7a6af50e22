"""The runner: `execute_model` up to the hidden states, `sample_tokens` from there, split at the token point."""

import torch
from torch import Tensor

from omni.device import Device, HostRing, Uploader
from omni_ar.attention import AttentionBackend, AttentionMetadata, KVCache, PrefillRow
from omni_ar.model import ArModel, Batch, CodecModel, NextTokens, PayloadSink, PlacedSegment, PromptTokens
from omni_ar.run.limits import Limits
from omni_ar.run.pack import PackedPrompts, PackedStep, pack_step
from omni_ar.run.phases import (
    Admission,
    admit_rows,
    compute_logits,
    copy_tokens,
    place_prompts,
    post_update,
    predict_codes,
    prepare_decodes,
    run_forward,
    sample_rows,
)
from omni_ar.run.scheduler import StepPlan
from omni_ar.run.state import RowState, StepBuffers
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
        shape = model.shape
        pages = (limits.num_blocks + 1, limits.block_size)  # block 0 is the null block
        self.device = device
        self.stream = device.stream(name, priority=priority)
        self._copy_stream = device.stream(f"{name}-copy", priority=priority)
        self._model = model
        self._backend = backend
        self._limits = limits
        self._state = RowState.allocate(device, model, limits.rows, limits.max_blocks, dtype)
        self._buffers = StepBuffers.allocate(device, model, limits, _RING, dtype)
        self._cache = KVCache.allocate(
            device.zeros, shape.num_layers, *pages, shape.num_kv_heads, shape.head_dim, dtype
        )
        self.hidden_pages = device.zeros((*pages, shape.payload_width), dtype) if shape.payload_width else None
        groups = model.num_groups if isinstance(model, CodecModel) else 0
        self.code_pages = device.zeros((*pages, groups), torch.int64) if groups else None
        self._uploader = Uploader(device, self.stream, limits.upload_words, _RING)
        self._downloads = HostRing(device, (limits.rows, 2), torch.int64, _RING)
        self._steady: tuple[tuple[int, ...], PackedStep] | None = None

    @property
    def ready(self) -> bool:
        """Whether a step could be launched now without touching a host slot that is still in use."""
        return self._uploader.ready and self._downloads.ready

    def forget_batch(self) -> None:
        """After a step that failed half-way: the next one takes nothing over from it."""
        self._steady = None

    def execute_model(self, plan: StepPlan) -> StepContext:
        """Launches inputs and forward of the planned rows."""
        rows = tuple(snapshot(request) for request in plan.requests)
        key = tuple(scheduled.row.index for scheduled in rows)
        if self._steady is not None and self._steady[0] == key and not plan.prefills:
            packed = self._steady[1]  # same rows as the step before: nothing to copy
        else:
            upload = self._uploader.begin()
            step_columns = len(self._model.shape.step_columns)
            try:
                packed = pack_step(upload, plan, self._limits.max_blocks, self._limits.block_size, step_columns)
            except Exception:
                self._uploader.cancel(upload)
                raise
            self._uploader.launch(upload)
            self._steady = None if plan.prefills or step_columns else (key, packed)
        rows_R = self._uploader.view(packed.rows)
        if packed.prompts is not None:
            self.device.launch(self.stream, admit_rows, self._state, self._admission(packed.prompts))
        self._forward(plan, packed, rows_R)
        advance_R = self._uploader.view(packed.prompts.advance) if packed.prompts else self._state.ones[: len(rows)]
        return StepContext(plan.step, rows, rows_R, advance_R, flags_of(plan.requests))

    def sample_tokens(self, context: StepContext) -> SampledStep:
        """Launches logits and sampling, hands the tokens over, then launches what may run behind the handoff."""
        launch, state, count = self.device.launch, self._state, len(context.rows)
        hidden_RD, logits_RV = self._buffers.hidden_ND[:count], self._buffers.logits_NV[:count]
        handoff_R2 = self._buffers.handoff[context.step % _RING, :count]
        launch(self.stream, compute_logits, self._model, hidden_RD, logits_RV)
        launch(self.stream, sample_rows, state, logits_RV, context.rows_R, context.flags, handoff_R2)
        tokens = self._hand_over(handoff_R2)
        launch(self.stream, post_update, state, context.rows_R, context.advance_R)
        payload = self._defer(context, hidden_RD, handoff_R2)
        return SampledStep(context.rows, tokens, payload, self.device.record(self.stream))

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
        hidden = self.hidden_pages if any(s.index == 0 and s.request.wants_hidden for s in context.rows) else None
        if self.code_pages is not None:
            random, size = context.flags.any_random, self._limits.block_size
            self.device.launch(
                self.stream,
                predict_codes,
                self._model,
                self._state,
                hidden_RD,
                context.rows_R,
                handoff_R2,
                random,
                size,
                self.code_pages,
            )
        elif hidden is None:
            return None
        # Pages are written by the step's own phases, so their event belongs on its stream; nothing waits for it there.
        return PayloadHandoff(hidden, self.code_pages, self.device.record(self.stream))

    def _admission(self, prompts: PackedPrompts) -> Admission:
        view = self._uploader.view
        return Admission(
            view(prompts.ints),
            view(prompts.floats),
            view(prompts.stops),
            view(prompts.table),
            view(prompts.seen),
            view(prompts.suppressed),
        )

    def _forward(self, plan: StepPlan, packed: PackedStep, rows_R: Tensor) -> None:
        buffers, view, decodes, prompts = self._buffers, self._uploader.view, len(plan.decodes), packed.prompts
        decode_blocks = self._prepare_decodes(plan, rows_R[:decodes]) if decodes else 0
        total = decodes
        segments: tuple[PlacedSegment, ...] = ()
        sink = None
        if prompts is not None:
            total += prompts.slots.size
            positions_PT, slots_T = buffers.positions_PT[:, decodes:total], buffers.slots_T[decodes:total]
            self.device.launch(
                self.stream, place_prompts, positions_PT, slots_T, view(prompts.positions), view(prompts.slots)
            )
            segments = tuple(PlacedSegment(s.name, view(s.tokens), s.segment.tensors) for s in prompts.segments)
            if self.hidden_pages is not None and prompts.payload_tokens.size:
                sink = PayloadSink(self.hidden_pages, view(prompts.payload_tokens), view(prompts.payload_slots))
        attention = AttentionMetadata(
            slots_T=buffers.slots_T[:total],
            num_decode=decodes,
            decode_block_table_RM=buffers.table_NM[:decodes, :decode_blocks],
            decode_lengths_R=buffers.lengths_N[:decodes],
            decode_max_length=decode_blocks * self._limits.block_size,
            prefills=self._prefill_rows(plan),
        )
        batch = Batch(buffers.positions_PT[:, :total], attention, self._cache, self._backend, segments, sink)
        next_tokens = (
            NextTokens(buffers.ids_N[:decodes], view(packed.columns), buffers.codes_ND[:decodes]) if decodes else None
        )
        prompt_tokens = PromptTokens(view(prompts.columns), segments) if prompts is not None else None
        last_R = view(prompts.last) if prompts is not None else self._state.counting[:decodes]
        hidden_RD = buffers.hidden_ND[: rows_R.shape[0]]
        self.device.launch(self.stream, run_forward, self._model, next_tokens, prompt_tokens, batch, last_R, hidden_RD)

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
        for request in plan.prefills:
            assert request.prompt is not None
            assert request.row is not None
            length = request.prompt.length
            rows.append(PrefillRow(start, length, 0, self._state.block_table[request.row.index]))
            start += length
        return tuple(rows)
