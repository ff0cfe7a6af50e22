"""The third handoff: log-probabilities of sampled tokens and of prompts."""

import torch
from torch import Tensor

from omni.device import Device, Event, HostRing, HostSlot, Stream
from omni_ar.model import ArModel
from omni_ar.run.limits import Limits
from omni_ar.run.phases import copy_scores, score_prompt, score_tokens
from omni_ar.run.state import SCORE_WORDS, StepBuffers
from omni_ar.run.step import ScoreHandoff, StepContext

_LOGITS_AT_ONCE = 64
"""Prompt tokens whose logits are computed together: as many rows of the vocabulary's width are in memory."""


class Scorer:
    """Launches the scoring behind the token point, and its copy to the host on a stream of its own.

    A slot, on the device and of the host's ring alike, is used again once the host has read it: whoever plans keeps fewer than
    `slots` handoffs unread.
    """

    def __init__(
        self, name: str, device: Device, stream: Stream, model: ArModel, buffers: StepBuffers, limits: Limits
    ) -> None:
        self.slots = limits.ring
        self._device = device
        self._stream = stream
        self._copy_stream = device.stream(f"{name}-scores")
        self._model = model
        self._buffers = buffers
        self._ring = HostRing(device, (limits.step_tokens, SCORE_WORDS), torch.int64, limits.ring)
        self._next = 0

    @property
    def ready(self) -> bool:
        """Whether the device is done with the next slot."""
        return self._ring.ready

    def score(self, context: StepContext) -> ScoreHandoff | None:
        """Scores what the step's requests ask for; None if they ask for nothing."""
        asking = [one.request for one in context.rows if one.request.sampling.logprobs is not None]
        prompt = context.prompt_scores
        if not asking and prompt is None:
            return None
        counts = [request.sampling.logprobs or 0 for request in asking]
        rows = len(context.rows) if counts else 0
        total = rows + (prompt.ids_s.shape[0] if prompt is not None else 0)
        scores = self._buffers.scores[self._next, :total]
        launch = self._device.launch
        if rows:
            logits_RV, accepted_RW = self._buffers.logits_NV[:rows], self._buffers.accepted_NW[:rows]
            launch(self._stream, score_tokens, logits_RV, accepted_RW, max(counts), scores[:rows])
        if prompt is not None:
            launch(
                self._stream,
                score_prompt,
                self._model,
                prompt.hidden_sD,
                prompt.ids_s,
                prompt.count,
                _LOGITS_AT_ONCE,
                scores[rows:],
            )
        handoff = self._hand_over(scores)
        chunks, prompt_count = (prompt.chunks, prompt.count) if prompt is not None else ((), 0)
        requests = dict.fromkeys([*asking, *(chunk.request for chunk in chunks)])
        return ScoreHandoff(*handoff, rows, max(counts, default=0), chunks, prompt_count, tuple(requests))

    def _hand_over(self, scores: Tensor) -> tuple[HostSlot, Event]:
        self._device.wait(self._copy_stream, self._device.record(self._stream))
        slot = self._ring.advance()
        self._next = (self._next + 1) % self.slots
        slot.take()
        try:
            self._device.launch(self._copy_stream, copy_scores, slot.tensor[: scores.shape[0]], scores)
        finally:
            ready = self._device.record(self._copy_stream)
            slot.guard(ready)
        return slot, ready
