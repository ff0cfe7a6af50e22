"""Captured forwards of steps with chunks, by their maximum number of chunk tokens."""

from dataclasses import dataclass

import torch

from omni.device import Graph, SyncPoint, may_sync
from omni.graphs import CapturedGraphs
from omni_ar.run.forward import ChunkStep, Forward
from omni_ar.run.limits import step_fields
from omni_ar.run.pack.chunks import placeholders_in
from omni_ar.run.phases import Embedded
from omni_ar.run.plan import PaddedShape, StepPlan
from omni_ar.run.state import ChunkBuffers, Pages, Resources


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """buffers: the buffers that the graph reads and writes."""

    padded_shape: PaddedShape
    graph: Graph
    buffers: ChunkBuffers


class CapturedChunks:
    """Captures two batches of each size: one of chunks only, and one with all decode rows before the chunks, most of
    which may be null rows."""

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
            padded_shape = PaddedShape(rows, tokens, self._stage.limits.captured_chunks)
            name = f"{self._stage.name}-{'mixed' if rows else 'prompts'}-{tokens}"
            graph = self._stage.device.capture(
                self._stage.stream, name, self._forward.captured(padded_shape, buffers, pages)
            )
            self._graphs.add(rows > 0, tokens, CapturedForward(padded_shape, graph, buffers))

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
        captured = self._graphs.find(bool(plan.decodes), plan.chunk_tokens)
        return captured.graph if captured is not None else None

    def launch(self, captured: CapturedForward, step: ChunkStep, pages: Pages) -> None:
        """Launches inputs and forward of a step in the captured forward's padded shape."""
        self._stage.device.enqueue(self._stage.stream, self._forward.fill(step, captured.buffers, pages))
        self._stage.device.replay(self._stage.stream, captured.graph)
        self._stage.device.enqueue(self._stage.stream, [self._forward.keep(step, captured.buffers)])

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
        embedding = self._forward.embed([self._forward.nexts(steps_XR)], None, Embedded(buffers.inputs_TD))
        self._stage.device.enqueue(self._stage.stream, [embedding])
