"""The runner: `execute_model` up to the hidden states, `sample_tokens` from there, split at the token point."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni.device import Device, Event, Stream, Uploader
from omni_ar.attention import AttentionBackend, AttentionMetadata, PrefillRow
from omni_ar.model import ArModel, Batch, NextTokens, PayloadSink, PlacedSegment, PromptTokens
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.run.pack import PackedChunks, PackedSegment, PackedStarts, PackedStep, pack_step, scored_positions
from omni_ar.run.pages import Pages
from omni_ar.run.phases import (
    Kept,
    extend_tables,
    place_chunks,
    predict_codes,
    prepare_decodes,
    restore_frames,
    run_forward,
    start_rows,
)
from omni_ar.run.plan import Chunk, StepPlan
from omni_ar.run.scores import Scorer
from omni_ar.run.source import LocalTokens, TokenSource
from omni_ar.run.state import RowState, StepBuffers, next_width
from omni_ar.run.step import (
    PayloadHandoff,
    PromptScores,
    SampledStep,
    ScoredChunk,
    StepContext,
    Written,
    snapshot,
)
from omni_ar.sampling import SamplingFlags, flags_of, view_edits, view_starts

SourceFactory = Callable[[Stream, RowState, StepBuffers], TokenSource]
"""Makes a token source for the stage's stream, which fills this state."""


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
        processors: Sequence[NamedProcessor] = (),
        source: SourceFactory | None = None,
    ) -> None:
        """processors: those that a row may use. source: makes what the tokens come from; None samples them here."""
        self.device = device
        self.stream = device.stream(name, priority=priority)
        self._payload_stream = device.stream(f"{name}-payload", priority=priority)
        self._model = model
        self._backend = backend
        self._limits = limits
        self._dtype = dtype
        self._processors = processors
        self._state = RowState.allocate(device, model, limits, dtype, processors)
        self._buffers = StepBuffers.allocate(device, model, limits, dtype)
        self._pages: Pages | None = None
        # One more than steps in flight: a step that fails half-way may leave a copy behind.
        self._uploader = Uploader(device, self.stream, limits.upload_words, limits.ring + 1)
        self.source: TokenSource = (
            LocalTokens(name, device, self.stream, model, self._state, self._buffers, limits, priority, processors)
            if source is None
            else source(self.stream, self._state, self._buffers)
        )
        self._scorer = Scorer(name, device, self.stream, model, self._buffers)
        self._steady: _Steady | None = None

    def allocate(self, num_blocks: int) -> None:
        """Allocates KV and payload pages, the null block besides; replaces those that were there."""
        self._pages = None  # the old ones go before the new ones come
        self._pages = Pages.allocate(self.device, self._model, num_blocks, self._limits.block_size, self._dtype)

    @property
    def pages(self) -> Pages:
        """Raises RuntimeError before `allocate`."""
        if self._pages is None:
            raise RuntimeError("the stage's pages are not allocated yet")
        return self._pages

    @property
    def ready(self) -> bool:
        """Whether a step could be launched now without touching a host slot that is still in use."""
        return self._uploader.ready and self.source.ready

    @property
    def can_score(self) -> bool:
        """Whether the step may be asked for log-probabilities."""
        return self._scorer.ready

    def forget_batch(self) -> None:
        """After a step that failed half-way: the next one takes nothing over from it."""
        self._steady = None
        self.source.forget()
        self._scorer.forget()

    def execute_model(self, plan: StepPlan) -> StepContext:
        """Launches inputs and forward of the planned rows."""
        self.source.begin(plan.step)
        self._scorer.begin()
        rows = tuple(snapshot(request) for request in plan.sampled)
        packed, flags = self._pack(plan, tuple(scheduled.row.index for scheduled in rows))
        view, launch = self._uploader.view, self.device.launch
        rows_R = view(packed.rows)
        if packed.starts is not None:
            self._start(packed.starts)
        if packed.grown is not None:
            launch(self.stream, extend_tables, self._state.block_table, view(packed.grown))
        hidden_RD = self._buffers.hidden[plan.step % self._limits.ring, : len(rows)]
        scores = self._prompt_scores(plan, packed.chunks)
        self._forward(plan, packed, rows_R, hidden_RD, scores)
        emits = any(scheduled.emits_hidden for scheduled in rows) or (rows and self._model.shape.emits_tokens)
        written = self._written() if emits else None
        advance_R = view(packed.chunks.advance) if packed.chunks else self._state.ones[: len(rows)]
        edits = view_edits(packed.edits, view) if packed.edits is not None else None
        return StepContext(plan.step, rows, rows_R, advance_R, hidden_RD, flags, edits, scores, written)

    def sample_tokens(self, context: StepContext) -> SampledStep:
        """Launches logits and sampling, hands the tokens over, then launches what may run behind the handoff."""
        tokens = self.source.sample(context) if context.rows else None
        codes = self._predict_codes(context) if context.rows else None
        hidden = (
            Written(self.pages.hidden, context.written) if context.written and self.pages.hidden is not None else None
        )
        scores = self._scorer.score(context)
        end = self.device.record(self.stream)
        return SampledStep(context.rows, tokens, PayloadHandoff(hidden, codes), scores, end)

    def _pack(self, plan: StepPlan, rows: tuple[int, ...]) -> tuple[PackedStep, SamplingFlags]:
        """Uploads what the step needs from the host."""
        edited = any(request.edit is not None for request in plan.sampled)
        changed = bool(plan.chunks or plan.grown or edited or self._model.shape.step_columns)
        steady = self._steady
        if steady is not None and steady.rows == rows and not changed:
            return steady.packed, steady.flags  # same rows as the step before: nothing to copy
        upload = self._uploader.begin()
        try:
            packed = pack_step(upload, plan, self._limits, self._model.shape, self._processors)
        except Exception:
            self._uploader.cancel(upload)
            raise
        self._uploader.launch(upload)
        flags = flags_of(request.sampling for request in plan.sampled)
        repeats = not plan.chunks and not self._model.shape.step_columns
        self._steady = _Steady(rows, packed.repeated(), flags) if repeats else None
        return packed, flags

    def _written(self) -> Event:
        """The event of payload that was launched so far: what consumers wait for is on a stream of its own, as is what they do."""
        self.device.wait(self._payload_stream, self.device.record(self.stream))
        return self.device.record(self._payload_stream)

    def _predict_codes(self, context: StepContext) -> Written | None:
        pages = self.pages
        if pages.codes is None:
            return None
        self.device.launch(
            self.stream,
            predict_codes,
            self._model,
            self._state,
            context.hidden_RD,
            context.rows_R,
            context.flags.any_random,
            self._limits.block_size,
            pages.codes,
        )
        return Written(pages.codes, self._written())

    def _start(self, starts: PackedStarts) -> None:
        view = self._uploader.view
        rows_n, words_nC, table_nM = view(starts.rows), view(starts.words), view(starts.table)
        sampling = view_starts(starts.sampling, view)
        self.device.launch(self.stream, start_rows, self._state, rows_n, words_nC, table_nM, sampling)
        self.source.start(rows_n, words_nC, sampling)

    def _forward(
        self,
        plan: StepPlan,
        packed: PackedStep,
        rows_R: Tensor,
        hidden_RD: Tensor,
        scores: PromptScores | None,
    ) -> None:
        buffers, view, decodes, chunks = self._buffers, self._uploader.view, len(plan.decodes), packed.chunks
        decode_blocks = self._prepare_decodes(plan, rows_R[:decodes]) if decodes else 0
        nexts = (
            [NextTokens(buffers.ids_N[:decodes], view(packed.columns), buffers.codes_ND[:decodes])] if decodes else []
        )
        total, prompt_start = decodes, decodes
        segments: tuple[PlacedSegment, ...] = ()
        if chunks is not None:
            total += chunks.slots.size
            prompt_start += chunks.replayed
            self._place(chunks, decodes, total)
            if chunks.replayed:
                nexts.append(self._replay(plan, chunks))
            segments = tuple(self._placed(segment) for segment in chunks.segments)
        attention = AttentionMetadata(
            slots_T=buffers.slots_T[:total],
            num_decode=decodes,
            decode_block_table_RM=buffers.table_NM[:decodes, :decode_blocks],
            decode_lengths_R=buffers.lengths_N[:decodes],
            decode_max_length=decode_blocks * self._limits.block_size,
            prefills=self._prefill_rows(plan),
        )
        positions_PT, cache, sink = buffers.positions_PT[:, :total], self.pages.kv, self._sink(decodes, chunks)
        batch = Batch(positions_PT, attention, cache, self._backend, prompt_start, segments, sink)
        prompts = PromptTokens(view(chunks.columns), segments) if chunks is not None and plan.prompts else None
        last_R = view(chunks.last) if chunks is not None else self._state.counting[:decodes]
        kept = Kept(last_R, hidden_RD)
        if scores is not None and chunks is not None:
            kept = Kept(last_R, hidden_RD, view(chunks.scored_tokens), scores.hidden_sD)
        self.device.launch(self.stream, run_forward, self._model, nexts, prompts, batch, kept)

    def _sink(self, decodes: int, chunks: PackedChunks | None) -> PayloadSink | None:
        hidden, view = self.pages.hidden, self._uploader.view
        emitting = decodes if self._model.shape.emits_tokens else 0
        needed = chunks is not None and chunks.payload_tokens.size > 0
        if hidden is None or not (emitting or needed):
            return None
        none = self._state.counting[:0]
        tokens_m, slots_m = (view(chunks.payload_tokens), view(chunks.payload_slots)) if chunks else (none, none)
        return PayloadSink(hidden, self._buffers.slots_T[:emitting], tokens_m, slots_m)

    def _prompt_scores(self, plan: StepPlan, packed: PackedChunks | None) -> PromptScores | None:
        if packed is None or not packed.scored_ids.size:
            return None
        chunks, start = [], 0
        for chunk in plan.chunks:
            positions = scored_positions(chunk)
            if positions.size:
                chunks.append(ScoredChunk(chunk.request, int(positions[0]) + 1, start, positions.size))
                start += positions.size
        counts = [chunk.request.sampling.prompt_logprobs or 0 for chunk in chunks]
        hidden_sD = self._buffers.scored_TD[:start]
        return PromptScores(tuple(chunks), hidden_sD, self._uploader.view(packed.scored_ids), max(counts))

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


@dataclass(frozen=True, slots=True)
class _Steady:
    """A batch of decodes, on the device: as long as it stays the same there is nothing to upload."""

    rows: tuple[int, ...]
    packed: PackedStep
    flags: SamplingFlags


def _saved(chunk: Chunk) -> Tensor:
    """The frames of the generated tokens that a replay runs, `[n, G]`."""
    saved = chunk.request.saved_codes
    assert saved is not None
    first = chunk.start - chunk.request.length
    return saved[first : first + chunk.length]
