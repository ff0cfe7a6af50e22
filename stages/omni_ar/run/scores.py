"""The third handoff: log-probabilities of sampled tokens and of prompts."""

import torch

from omni.device import Device, Downloader, Stream
from omni_ar.kernels.step.state import StepBuffers
from omni_ar.model import ArModel
from omni_ar.run.phases import copy_scores, score_prompt, score_tokens
from omni_ar.run.step import ScoreHandoff, StepContext

_LOGITS_AT_ONCE = 64
"""Prompt tokens whose logits are computed together, which bounds the memory for logits."""


class Scorer:
    """Launches the scoring after the token point, and its copy to the host on a separate stream.

    A slot, on the device and in the host's ring, is reused once the host has read it.
    """

    def __init__(self, name: str, device: Device, stream: Stream, model: ArModel, buffers: StepBuffers) -> None:
        self._device = device
        self._stream = stream
        self._model = model
        self._buffers = buffers
        ring, tokens, words = buffers.scores.shape
        self._downloads = Downloader(
            device, stream, device.stream(f"{name}-scores"), (tokens, words), torch.int64, ring
        )

    @property
    def ready(self) -> bool:
        """Whether the next step may compute log-probabilities."""
        return self._downloads.ready

    def begin(self) -> None:
        """Called at the beginning of a step."""
        self._downloads.begin()

    def forget(self) -> None:
        """Drops the log-probabilities of a failed step."""
        self._downloads.forget()

    def score(self, context: StepContext) -> ScoreHandoff | None:
        """Launches the scores that the step's requests need; returns None if they need none."""
        asking = [one.request for one in context.rows if one.request.sampling.logprobs is not None]
        prompt = context.prompt_scores
        if not asking and prompt is None:
            return None
        counts = [request.sampling.logprobs or 0 for request in asking]
        rows = len(context.rows) if counts else 0
        total = rows + (prompt.ids_s.shape[0] if prompt is not None else 0)
        scores = self._buffers.scores[self._downloads.turn, :total]
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
        sent = self._downloads.send(copy_scores, scores)
        chunks, prompt_count = (prompt.chunks, prompt.count) if prompt is not None else ((), 0)
        requests = dict.fromkeys([*asking, *(chunk.request for chunk in chunks)])
        return ScoreHandoff(
            host=sent.slot,
            ready=sent.ready,
            made=sent.made,
            rows=rows,
            count=max(counts, default=0),
            chunks=chunks,
            prompt_count=prompt_count,
            requests=tuple(requests),
        )
