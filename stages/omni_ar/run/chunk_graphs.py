"""Captured forwards of steps with chunks, by how many tokens of chunks they have room for.

Shape legend: X words that condition a step, R rows.
"""

import logging
from dataclasses import dataclass

import torch

from omni.batch_sizes import BatchSizes
from omni.device import Device, Graph, Stream, SyncPoint, may_sync
from omni_ar.model import ArModel
from omni_ar.run.forward import ChunkStep, Forward
from omni_ar.run.limits import Limits, step_words
from omni_ar.run.pack import placeholders_in
from omni_ar.run.pages import Pages
from omni_ar.run.phases import Embedded
from omni_ar.run.plan import PaddedShape, StepPlan
from omni_ar.run.state import ChunkBuffers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """buffers: what it was captured with."""

    graph: Graph
    buffers: ChunkBuffers


class ChunkGraphs:
    """What was captured at start: nothing, or two batches for each of some numbers of tokens. One is of chunks alone; in the other
    all rows decode before them, most of which may be null rows."""

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
        self._sizes = BatchSizes(name, unit="chunk tokens", option="graph_chunk_sizes")
        self._captured: dict[PaddedShape, CapturedForward] = {}
        self._buffers: ChunkBuffers | None = None
        self._told: set[str] = set()

    def clear(self) -> None:
        self._sizes.clear()
        self._captured.clear()
        self._buffers = None

    def capture(self, tokens: int, pages: Pages) -> None:
        """Captures both batches of a size. The largest first: what they read and write is then allocated once."""
        buffers = self._buffers_for(self._limits.rows + tokens)
        for rows in (self._limits.rows, 0):
            padded_shape = PaddedShape(rows, tokens, self._limits.captured_chunks)
            name = f"{self._name}-{'mixed' if rows else 'prompts'}-{tokens}"
            graph = self._device.capture(self._stream, name, self._forward.captured(padded_shape, buffers, pages))
            self._captured[padded_shape] = CapturedForward(graph, buffers)
        self._sizes.add(tokens)

    def padded_shape(self, plan: StepPlan) -> PaddedShape | None:
        """Of the captured batch that stands for a step with chunks; None if none does: it runs uncaptured."""
        if not self._captured or not self._fits(plan):
            return None
        tokens = self._sizes.padded(plan.chunk_tokens)
        if tokens is None:
            return None
        return PaddedShape(self._limits.rows if plan.decodes else 0, tokens, self._limits.captured_chunks)

    def launch(self, step: ChunkStep, pages: Pages) -> None:
        """Inputs and forward of a step whose room is one that `padded_shape` gave."""
        captured = self._captured[step.padded_shape]
        self._device.enqueue(self._stream, self._forward.fill(step, captured.buffers, pages))
        self._device.replay(self._stream, captured.graph)
        self._device.enqueue(self._stream, [self._forward.keep(step, captured.buffers)])

    def _fits(self, plan: StepPlan) -> bool:
        count, most = len(plan.chunks), self._limits.captured_chunks
        if count > most:
            self._tell_once("chunks", f"{count} chunks runs uncaptured, as do all of more than {most}")
            return False
        embeddings, read = (
            {placeholder.name for chunk in plan.prompts for placeholder, _ in placeholders_in(chunk)},
            self._read,
        )
        if embeddings and (read is None or not embeddings.isdisjoint(read)):
            names = ", ".join(sorted(embeddings if read is None else embeddings.intersection(read)))
            told = "that the model's forward reads" if read else "of which ArShape.forward_embeddings tells nothing"
            self._tell_once("embeddings", f"multimodal embeddings ({names}) {told} runs uncaptured, as do all")
            return False
        return True

    def _tell_once(self, kind: str, step: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("%s: a step with %s", self._name, step)

    def _buffers_for(self, tokens: int) -> ChunkBuffers:
        if self._buffers is None or self._buffers.inputs_TD.shape[0] < tokens:
            self._buffers = ChunkBuffers.allocate(self._device, self._model.shape, self._limits, tokens, self._dtype)
            self._try_embedding(self._buffers)
        return self._buffers

    def _try_embedding(self, buffers: ChunkBuffers) -> None:
        """Embeds null rows: a wrong `ArShape.input_width` would else show with the first prompt only."""
        steps_XR = self._device.zeros((step_words(self._model.shape), self._limits.rows), torch.int64)
        with may_sync(SyncPoint.CAPTURE):
            self._device.synchronize()  # zeros are written on another stream
        embedding = self._forward.embed([self._forward.nexts(steps_XR)], None, Embedded(buffers.inputs_TD))
        self._device.enqueue(self._stream, [embedding])
