"""The launches of a step's forward, from its inputs to the hidden states for sampling.

Shape legend: R rows of the batch, B rows of a captured one, X conditioning fields of a step, T tokens, P chunks, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from omni.device import Graph, Launch, PackedSpan, SyncPoint, may_sync
from omni.device.graphs import CapturedGraphs
from omni_ar.attention import AttentionBackend, AttentionMetadata, PrefillRow
from omni_ar.kernels.step.dispatch import prepare_decodes
from omni_ar.kernels.step.drafts import prepare_drafts
from omni_ar.model import Batch, CodecModel, LayerSink, PayloadSink, PipelineBoundary, PlacedEmbedding, PromptTokens
from omni_ar.run.drafting import Drafting
from omni_ar.run.limits import step_fields
from omni_ar.run.pack_chunks import PackedChunks, StepTensors, placeholders_in
from omni_ar.run.phases import (
    InputEmbeddings,
    NextInputs,
    SavedHiddenStates,
    embed_inputs,
    keep_hidden,
    place_chunks,
    place_payload,
    restore_frames,
    run_forward,
)
from omni_ar.run.plan import BatchShape, StepPlan
from omni_ar.run.state import ChunkBuffers, Pages, Resources, next_width
from omni_ar.run.step import PromptScores

View = Callable[[PackedSpan], Tensor]
"""Returns an uploaded array on the device (`Uploader.view`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStep:
    """A step with chunks: its packed inputs and their view on the device, the conditioning of its decode rows, the shape of its
    batch, padding included, the maximum number of blocks in use of a decode row's table, and its inputs on the device."""

    chunks: PackedChunks
    steps: PackedSpan
    shape: BatchShape
    blocks: int
    view: View
    tensors: StepTensors
    scores: PromptScores | None


class ForwardLaunches(NamedTuple):
    """inputs: up to the input embeddings. forward: the work that needs the hidden states of the layers before, and the work after
    it."""

    inputs: list[Launch]
    forward: list[Launch]


class Forward:
    """Makes lists of launches over the stage's buffers, without launching them."""

    def __init__(
        self,
        stage: Resources,
        backend: AttentionBackend,
        boundary: Callable[[int], PipelineBoundary] | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        """boundary: `HiddenTransfers.boundary`; None if all layers are here. drafting: None where no drafter runs."""
        self._stage = stage
        self._backend = backend
        self._boundary = boundary
        self._drafting = drafting
        self.last = boundary is None or boundary(0).sent is None
        """Whether the last layer range is here."""

    def decodes(
        self, rows_R: Tensor, steps_XR: Tensor, blocks: int, pages: Pages, drafts: int = 0
    ) -> "ForwardLaunches":
        """Launches of a batch of decode rows only. They depend on the arguments alone, so they can be captured. blocks:
        maximum number of blocks in use of a row's table. drafts: positions of each row besides its newest token; attention takes
        each position for a decode row of its own."""
        count, embedded = rows_R.shape[0] * (1 + drafts), InputEmbeddings()
        shape, sink = BatchShape(count, 0, 0), None
        if pages.hidden is not None and self._emits(shape):
            sink = PayloadSink(pages.hidden, self._stage.buffers.slots_T[:count])
        drafting = self._drafting
        metadata = self._metadata(shape, blocks, positions=1 + drafts)
        batch = self._batch(metadata, pages, sink, keeps_features=drafts > 0)
        kept = SavedHiddenStates(None, self._stage.buffers.hidden[:count]) if self.last else None
        if drafts:
            steps_XR = steps_XR[:, :1].expand(-1, count)  # no columns: steps with conditioning have no drafts
        return ForwardLaunches(
            inputs=[
                *self._prepare_decodes(rows_R, blocks, drafts, pages),
                self.embed([self.nexts(steps_XR)], None, embedded),
            ],
            forward=[
                Launch.of(run_forward, self._stage.model, embedded, batch, kept),
                *(drafting.keep_launches(rows_R, drafts) if drafting is not None else ()),
            ],
        )

    def chunks(self, step: ChunkStep, pages: Pages) -> "ForwardLaunches":
        """Launches of a batch of decode rows, if any, followed by chunks."""
        chunks, view, embedded = step.chunks, step.view, InputEmbeddings()
        embeddings = _placed(step)
        metadata = self._metadata(step.shape, step.blocks, self._prefill_rows(chunks), view(chunks.rows))
        sink = self._payload(step.shape, pages) if self._emits(step.shape) or chunks.payload else None
        prompt_start = step.shape.decodes + chunks.replayed
        batch = self._batch(metadata, pages, sink, prompt_start, embeddings)
        return ForwardLaunches(
            inputs=self._inputs(step, embeddings, step.blocks, embedded, pages),
            forward=[
                Launch.of(run_forward, self._stage.model, embedded, batch, self._kept(step)),
                *self._prefill_drafts(batch, view(chunks.rows), step.shape, pages),
                *self._keep_drafts(step),
            ],
        )

    def captured(self, shape: BatchShape, buffers: ChunkBuffers, pages: Pages) -> list[Launch]:
        """The forward of a batch whose chunks the device alone knows, for capture. `fill` runs before it, and `keep` after it."""
        total = shape.total
        metadata = self._metadata(shape, self._stage.limits.max_blocks, rows_P4=buffers.rows_P4)
        batch = self._batch(metadata, pages, self._payload(shape, pages))
        embedded = InputEmbeddings(buffers.inputs_TD[:total])
        kept = SavedHiddenStates(None, buffers.outputs_TD[:total]) if self.last else None
        drafts = self._prefill_drafts(batch, buffers.rows_P4, shape, pages)
        return [Launch.of(run_forward, self._stage.model, embedded, batch, kept), *drafts]

    def fill(self, step: ChunkStep, buffers: ChunkBuffers, pages: Pages) -> list[Launch]:
        embedded = InputEmbeddings(buffers.inputs_TD[: step.shape.total])
        embeddings = _placed(step)
        return self._inputs(step, embeddings, self._stage.limits.max_blocks, embedded, pages, buffers.rows_P4)

    def keep(self, step: ChunkStep, buffers: ChunkBuffers) -> list[Launch]:
        """Copies the hidden states that later phases need out of a captured forward."""
        kept, launches = self._kept(step), self._keep_drafts(step)
        if kept is not None:
            launches.append(Launch.of(keep_hidden, buffers.outputs_TD[: step.shape.total], kept))
        return launches

    def nexts(self, steps_XR: Tensor) -> NextInputs:
        count = steps_XR.shape[1]
        return NextInputs(self._stage.buffers.ids_N[:count], steps_XR, self._stage.buffers.codes_ND[:count])

    def embed(self, nexts: Sequence[NextInputs], prompts: PromptTokens | None, embedded: InputEmbeddings) -> Launch:
        stage = self._stage
        return Launch.of(embed_inputs, stage.model, nexts, prompts, stage.rows.conditioning, embedded)

    def _inputs(
        self,
        step: ChunkStep,
        embeddings: Sequence[PlacedEmbedding],
        blocks: int,
        embedded: InputEmbeddings,
        pages: Pages,
        rows_P4: Tensor | None = None,
    ) -> list[Launch]:
        """Uploads and embeds a batch with chunks, including its padding. rows_P4: an additional destination of the chunks' rows."""
        chunks, shape, view, buffers = step.chunks, step.shape, step.view, self._stage.buffers
        targets = [buffers.positions_slots_AT[:, shape.decodes : shape.total]]
        uploaded = [view(chunks.positions_slots)]
        if rows_P4 is not None:
            targets.append(rows_P4)
            uploaded.append(view(chunks.rows))
        launches: list[Launch] = []
        nexts: list[NextInputs] = []
        if shape.decodes:
            if self._drafting is not None:
                launches += self._drafting.follow_launches(view(chunks.decodes), blocks, pages.drafts)
            launches.append(self._prepare(view(chunks.decodes), blocks))
            nexts.append(self.nexts(view(step.steps)))
        launches.append(Launch.of(place_chunks, targets, uploaded))
        if shape.decodes and pages.hidden is not None:
            slots_R = buffers.slots_T[: shape.decodes] if self._emits(shape) else None
            launches.append(Launch.of(place_payload, buffers.payload_slots_T[: shape.decodes], slots_R))
        if chunks.replayed:
            replayed, restore = self._replay(step, pages)
            nexts.append(replayed)
            launches += restore
        prompts = PromptTokens(view(chunks.columns), embeddings) if chunks.columns.shape[1] else None
        launches.append(self.embed(nexts, prompts, embedded))
        return launches

    def _kept(self, step: ChunkStep) -> SavedHiddenStates | None:
        if not self.last:
            return None
        chunks, view = step.chunks, step.view
        hidden_RD = self._stage.buffers.hidden[: chunks.last.size]
        if step.scores is None:
            return SavedHiddenStates(view(chunks.last), hidden_RD)
        return SavedHiddenStates(view(chunks.last), hidden_RD, view(chunks.scored_tokens), step.scores.hidden_sD)

    def _prepare(self, rows_R: Tensor, blocks: int) -> Launch:
        return Launch.of(
            prepare_decodes, self._stage.rows, rows_R, self._stage.limits.block_size, self._stage.buffers, blocks
        )

    def _prepare_decodes(self, rows_R: Tensor, blocks: int, drafts: int, pages: Pages) -> list[Launch]:
        """The inputs of decode rows that no chunks join. Drafts are made after the token point of the step before. A drafter
        without weights also runs where no draft is verified, since the first draft is compared with the token."""
        stage, drafting = self._stage, self._drafting
        if not stage.limits.drafts:
            return [self._prepare(rows_R, blocks)]
        given = (stage.rows, rows_R, 1 + drafts, stage.limits.block_size, stage.buffers, blocks)
        made = drafting.decode_launches(rows_R, blocks, pages.drafts, drafts) if drafting is not None else []
        return [*made, Launch.of(prepare_drafts, *given)]

    def _prefill_drafts(self, batch: Batch, rows_P4: Tensor, shape: BatchShape, pages: Pages) -> list[Launch]:
        drafting = self._drafting
        return drafting.prefill_launches(batch, rows_P4, shape, pages.drafts) if drafting is not None else []

    def _keep_drafts(self, step: ChunkStep) -> list[Launch]:
        view, chunks = step.view, step.chunks
        if self._drafting is None:
            return []
        return self._drafting.keep_chunk_launches(view(chunks.decodes), view(chunks.rows))

    def _metadata(
        self,
        shape: BatchShape,
        blocks: int,
        prefills: tuple[PrefillRow, ...] = (),
        rows_P4: Tensor | None = None,
        positions: int = 1,
    ) -> AttentionMetadata:
        buffers, decodes = self._stage.buffers, shape.decodes
        return AttentionMetadata(
            slots_T=buffers.slots_T[: shape.total],
            num_decode=decodes,
            decode_block_table_RM=buffers.table_NM[:decodes, :blocks],
            decode_lengths_R=buffers.lengths_N[:decodes],
            decode_max_length=blocks * self._stage.limits.block_size,
            decode_positions=positions,
            prefills=prefills,
            prefill_rows_P4=rows_P4,
            block_table_NM=self._stage.rows.block_table,
        )

    def _batch(
        self,
        metadata: AttentionMetadata,
        pages: Pages,
        sink: PayloadSink | None,
        prompt_start: int = 0,
        embeddings: Sequence[PlacedEmbedding] = (),
        *,
        keeps_features: bool = True,
    ) -> Batch:
        """keeps_features: whether the drafter reads hidden states of this step."""
        positions_PT = self._stage.buffers.positions_PT[:, : metadata.slots_T.shape[0]]
        kept, layers = self._stage.limits.hidden_layers, None
        if self._drafting is not None and keeps_features:
            layers = self._drafting.sink
        if pages.layers is not None:
            layers = LayerSink(kept, pages.layers, metadata.slots_T, also=layers)
        return Batch(
            positions_PT=positions_PT,
            attention=metadata,
            cache=pages.kv,
            backend=self._backend,
            prompt_start=prompt_start,
            embeddings=embeddings,
            payload=sink,
            layers=layers,
            boundary=self._boundary(metadata.slots_T.shape[0]) if self._boundary is not None else None,
        )

    def _emits(self, shape: BatchShape) -> bool:
        return shape.decodes > 0 and self._stage.model.shape.emits_tokens

    def _payload(self, shape: BatchShape, pages: Pages) -> PayloadSink | None:
        if pages.hidden is None:
            return None
        return PayloadSink(pages.hidden, self._stage.buffers.payload_slots_T[: shape.total])

    def _replay(self, step: ChunkStep, pages: Pages) -> tuple[NextInputs, list[Launch]]:
        """The inputs of replayed tokens of preempted requests, and the launches that restore their frames."""
        stage, chunks, view, count = self._stage, step.chunks, step.view, step.chunks.replayed
        codes_nD = stage.device.empty((count, next_width(stage.model)), stage.dtype, stage.stream)
        launches: list[Launch] = []
        if pages.codes is not None:
            saved, first = step.tensors.saved, step.shape.decodes
            slots_n = self._stage.buffers.slots_T[first : first + count]
            assert isinstance(stage.model, CodecModel)
            launches.append(Launch.of(restore_frames, stage.model, saved, slots_n, pages.codes, codes_nD))
        return NextInputs(view(chunks.ids), view(chunks.steps), codes_nD), launches

    def _prefill_rows(self, chunks: PackedChunks) -> tuple[PrefillRow, ...]:
        tables = self._stage.rows.block_table
        return tuple(PrefillRow(each.first, each.length, each.context, tables[each.row]) for each in chunks.prefills)


def _placed(step: ChunkStep) -> tuple[PlacedEmbedding, ...]:
    """The chunks' parts of embeddings."""
    return tuple(
        PlacedEmbedding(packed.name, step.view(packed.tokens), tensors)
        for packed, tensors in zip(step.chunks.embeddings, step.tensors.embeddings, strict=True)
    )


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """buffers: the buffers that the graph reads and writes."""

    shape: BatchShape
    graph: Graph
    buffers: ChunkBuffers


class CapturedChunks:
    """Captures two batches of each size: one of chunks only, and one with all decode rows before the chunks, mostly null rows."""

    def __init__(self, stage: Resources, forward: Forward) -> None:
        self._stage = stage
        self._forward = forward
        # The key is whether rows decode.
        self._graphs = CapturedGraphs[bool, CapturedForward](
            stage.name, unit="chunk tokens", option="graph_chunk_sizes"
        )
        self._buffers: ChunkBuffers | None = None

    def clear(self) -> None:
        self._graphs.clear()
        self._buffers = None

    def capture(self, tokens: int, pages: Pages) -> None:
        """Captures both batches of a size. The largest size comes first: its buffers serve the others."""
        buffers = self._buffers_for(self._stage.limits.rows + tokens)
        for rows in (self._stage.limits.rows, 0):
            shape = BatchShape(rows, tokens, self._stage.limits.captured_chunks)
            name = f"{self._stage.name}-{'mixed' if rows else 'prompts'}-{tokens}"
            graph = self._stage.device.capture(self._stage.stream, name, self._forward.captured(shape, buffers, pages))
            self._graphs.add(rows > 0, tokens, CapturedForward(shape, graph, buffers))

    def find(self, plan: StepPlan) -> CapturedForward | None:
        """The captured forward that a step with chunks is padded to; None if the step runs uncaptured."""
        most = self._stage.limits.captured_chunks
        if len(plan.chunks) > most:
            self._graphs.log_uncaptured(f"steps with more than {most} chunks")
            return None
        embeddings = {p.name for chunk in plan.prompts for p, _ in placeholders_in(chunk)}
        read = self._stage.model.shape.forward_embeddings
        if embeddings and (read is None or not embeddings.isdisjoint(read)):
            names = ", ".join(sorted(embeddings if read is None else embeddings.intersection(read)))
            reason = "that the model's forward reads" if read else "that ArShape.forward_embeddings leaves open"
            self._graphs.log_uncaptured(f"steps with multimodal embeddings ({names}) {reason}")
            return None
        return self._graphs.find(bool(plan.decodes), plan.chunk_tokens)[1]

    def launch(self, step: ChunkStep, pages: Pages, receive: Callable[[], None]) -> None:
        """Launches inputs and forward of a step in a captured forward's shape. receive: launches the work between them."""
        captured = self._graphs.find(step.shape.decodes > 0, step.shape.tokens)[1]
        assert captured is not None, "`find` gave its shape"
        self._stage.device.enqueue(self._stage.stream, self._forward.fill(step, captured.buffers, pages))
        receive()
        self._stage.device.replay(self._stage.stream, captured.graph)
        self._stage.device.enqueue(self._stage.stream, self._forward.keep(step, captured.buffers))

    def _buffers_for(self, tokens: int) -> ChunkBuffers:
        if self._buffers is None or self._buffers.inputs_TD.shape[0] < tokens:
            self._buffers = ChunkBuffers.allocate(self._stage, tokens)
            self._try_embedding(self._buffers)
        return self._buffers

    def _try_embedding(self, buffers: ChunkBuffers) -> None:
        """Embeds null rows, so that a wrong `ArShape.input_width` fails at start instead of at the first prompt."""
        steps_XR = self._stage.device.zeros(
            (step_fields(self._stage.model.shape), self._stage.limits.rows), torch.int64
        )
        with may_sync(SyncPoint.CAPTURE):
            self._stage.device.synchronize()  # zeros are written on another stream
        embedding = self._forward.embed([self._forward.nexts(steps_XR)], None, InputEmbeddings(buffers.inputs_TD))
        self._stage.device.enqueue(self._stage.stream, [embedding])
