"""Captured forwards of steps with chunks, by their maximum number of chunk tokens.

Shape legend: X conditioning fields of a step, R rows.
"""

from dataclasses import dataclass

import torch

from omni.device import Device, Graph, Stream, SyncPoint, may_sync
from omni.graphs import CapturedGraphs
from omni_ar.model import ArModel
from omni_ar.run.forward import ChunkStep, Forward
from omni_ar.run.limits import Limits, step_fields
from omni_ar.run.pack import placeholders_in
from omni_ar.run.pages import Pages
from omni_ar.run.phases import Embedded
from omni_ar.run.plan import PaddedShape, StepPlan
from omni_ar.run.state import ChunkBuffers


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """buffers: the buffers that the graph reads and writes."""

    padded_shape: PaddedShape
    graph: Graph
    buffers: ChunkBuffers


class CapturedChunks:
    """Captures two batches of each size: one of chunks only, and one with all decode rows before the chunks, most of
    which may be null rows."""

    def __init__(
        self,
        name: str,
        device: Device,
        stream: Stream,
        model: ArModel,
        forward: Forward,
        limits: Limits,
        dtype: torch.dtype,
    ) -> None:
        self._name = name
        self._device = device
        self._stream = stream
        self._model = model
        self._forward = forward
        self._limits = limits
        self._dtype = dtype
        self._read = model.shape.forward_embeddings
        # The key is whether rows decode.
        self._graphs = CapturedGraphs[bool, CapturedForward](name, unit="chunk tokens", option="graph_chunk_sizes")
        self._buffers: ChunkBuffers | None = None

    def clear(self) -> None:
        self._graphs.clear()
        self._buffers = None

    def capture(self, tokens: int, pages: Pages) -> None:
        """Captures both batches of a size. The largest size comes first: its buffers serve the others."""
        buffers = self._buffers_for(self._limits.rows + tokens)
        for rows in (self._limits.rows, 0):
            padded_shape = PaddedShape(rows, tokens, self._limits.captured_chunks)
            name = f"{self._name}-{'mixed' if rows else 'prompts'}-{tokens}"
            graph = self._device.capture(self._stream, name, self._forward.captured(padded_shape, buffers, pages))
            self._graphs.add(rows > 0, tokens, CapturedForward(padded_shape, graph, buffers))

    def find(self, plan: StepPlan) -> CapturedForward | None:
        """The captured forward that a step with chunks is padded to; None if the step runs uncaptured."""
        most = self._limits.captured_chunks
        if len(plan.chunks) > most:
            self._graphs.log_uncaptured(f"steps with more than {most} chunks")
            return None
        embeddings, read = {p.name for chunk in plan.prompts for p, _ in placeholders_in(chunk)}, self._read
        if embeddings and (read is None or not embeddings.isdisjoint(read)):
            names = ", ".join(sorted(embeddings if read is None else embeddings.intersection(read)))
            reason = "that the model's forward reads" if read else "that ArShape.forward_embeddings leaves open"
            self._graphs.log_uncaptured(f"steps with multimodal embeddings ({names}) {reason}")
            return None
        captured = self._graphs.find(bool(plan.decodes), plan.chunk_tokens)
        return captured.graph if captured is not None else None

    def launch(self, captured: CapturedForward, step: ChunkStep, pages: Pages) -> None:
        """Launches inputs and forward of a step in the captured forward's padded shape."""
        self._device.enqueue(self._stream, self._forward.fill(step, captured.buffers, pages))
        self._device.replay(self._stream, captured.graph)
        self._device.enqueue(self._stream, [self._forward.keep(step, captured.buffers)])

    def _buffers_for(self, tokens: int) -> ChunkBuffers:
        if self._buffers is None or self._buffers.inputs_TD.shape[0] < tokens:
            self._buffers = ChunkBuffers.allocate(self._device, self._model.shape, self._limits, tokens, self._dtype)
            self._try_embedding(self._buffers)
        return self._buffers

    def _try_embedding(self, buffers: ChunkBuffers) -> None:
        """Embeds null rows, so that a wrong `ArShape.input_width` fails at start instead of at the first prompt."""
        steps_XR = self._device.zeros((step_fields(self._model.shape), self._limits.rows), torch.int64)
        with may_sync(SyncPoint.CAPTURE):
            self._device.synchronize()  # zeros are written on another stream
        embedding = self._forward.embed([self._forward.nexts(steps_XR)], None, Embedded(buffers.inputs_TD))
        self._device.enqueue(self._stream, [embedding])
