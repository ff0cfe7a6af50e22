"""The third handoff: log-probabilities of sampled tokens and of prompts."""

import torch

from omni.device import Downloader
from omni_ar.run.phases import copy_scores, score_prompt, score_tokens
from omni_ar.run.state import Resources
from omni_ar.run.step import ScoreHandoff, StepContext

_LOGITS_AT_ONCE = 64
"""Prompt tokens whose logits are computed together, which bounds the memory for logits."""


class Scorer:
    """Launches the scoring after the token point, and its copy to the host on a separate stream. Slots are reused once read."""

    def __init__(self, stage: Resources) -> None:
        self._stage = stage
        ring, tokens, fields = stage.buffers.scores.shape
        copies = stage.device.stream(f"{stage.name}-scores")
        self.downloads = Downloader(
            stage.device, stage.stream, copies, shape=(tokens, fields), dtype=torch.int64, slots=ring
        )

    def score(self, context: StepContext) -> ScoreHandoff | None:
        """Launches the scores that the step's requests need; returns None if they need none."""
        asking = [one.request for one in context.rows if one.request.sampling.logprobs is not None]
        prompt = context.prompt_scores
        if not asking and prompt is None:
            return None
        counts = [request.sampling.logprobs or 0 for request in asking]
        rows = len(context.rows) if counts else 0
        total = rows + (prompt.ids_s.shape[0] if prompt is not None else 0)
        stage, buffers = self._stage, self._stage.buffers
        scores = buffers.scores[self.downloads.next_slot, :total]
        launch, stream = stage.device.launch, stage.stream
        if rows:
            logits_RV, accepted_RW = buffers.logits_NV[:rows], buffers.accepted_NW[:rows]
            launch(stream, score_tokens, logits_RV, accepted_RW, max(counts), scores[:rows])
        if prompt is not None:
            given = (prompt.hidden_sD, prompt.ids_s, prompt.count, _LOGITS_AT_ONCE)
            launch(stream, score_prompt, stage.model, *given, scores[rows:])
        sent = self.downloads.send(copy_scores, scores)
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
