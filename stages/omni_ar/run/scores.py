"""The third handoff: log-probabilities of sampled tokens and of prompts."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Downloader, PackedSpan
from omni.payload import LogprobsChunk
from omni_ar.kernels.step.handoff import IDS
from omni_ar.run.late_phases import copy_scores, score_prompt, score_tokens
from omni_ar.run.launch import StepLaunch
from omni_ar.run.state import Resources
from omni_ar.run.step import PromptScores, ScoreHandoff, StepContext

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

    def prompt_scores(self, step: StepLaunch, view: Callable[[PackedSpan], Tensor]) -> PromptScores | None:
        """The prompt tokens that the step scores; None if there are none. view: `Uploader.view`."""
        chunks = step.packed.chunks
        if chunks is None or not chunks.scored_ids.size:
            return None
        hidden_sD = self._stage.buffers.scored_TD[: chunks.scored_ids.size]
        return PromptScores(hidden_sD, view(chunks.scored_ids), step.prompt_logprobs)

    def score(self, context: StepContext) -> ScoreHandoff | None:
        """Launches the scores that the step's requests need; returns None if they need none."""
        prompt, step, scored = context.prompt_scores, context.launch, context.requests.scored_chunks
        if step.logprobs is None and prompt is None:
            return None
        rows = step.positions if step.logprobs is not None else 0
        total = rows + (prompt.ids_s.shape[0] if prompt is not None else 0)
        stage, buffers = self._stage, self._stage.buffers
        scores = buffers.scores[self.downloads.next_slot, :total]
        launch, stream = stage.device.launch, stage.stream
        if rows:
            ids_R = buffers.sampled_N[:rows] if stage.limits.drafts else buffers.accepted_NW[:rows, IDS]
            launch(stream, score_tokens, buffers.logits_NV[:rows], ids_R, step.logprobs, scores[:rows])
        if prompt is not None:
            given = (prompt.hidden_sD, prompt.ids_s, prompt.count, _LOGITS_AT_ONCE)
            launch(stream, score_prompt, stage.model, *given, scores[rows:])
        sent = self.downloads.send(copy_scores, scores)
        asking = [one.request for one in context.requests.rows if one.request.sampling.logprobs is not None]
        requests = dict.fromkeys([*asking, *(chunk.request for chunk in scored)])
        return ScoreHandoff(
            host=sent.slot,
            ready=sent.ready,
            made=sent.made,
            rows=rows,
            count=step.logprobs or 0,
            chunks=scored,
            prompt_count=prompt.count if prompt is not None else 0,
            requests=tuple(requests),
        )


class TokenScores(NamedTuple):
    """A copy of the log-probabilities of n tokens: their host slot is reused."""

    ids_nk: NDArray[np.int64]
    logprobs_nk: NDArray[np.float32]
    ranks_n: NDArray[np.int64]

    def chunk(self, start: int, count: int, asked: int, first: int, prompt: bool = False) -> LogprobsChunk:
        """The log-probabilities of `count` tokens, with the `asked` likeliest ids each."""
        part, width = slice(start, start + count), 1 + asked
        ids_nk, logprobs_nk = self.ids_nk[part, :width], self.logprobs_nk[part, :width]
        return LogprobsChunk(first=first, ids=ids_nk, logprobs=logprobs_nk, ranks=self.ranks_n[part], prompt=prompt)


def read_scores(fields: NDArray[np.int64], count: int) -> TokenScores:
    """fields: `[n, SCORE_FIELDS]`, with `count` likeliest ids each."""
    width = 1 + count
    bits = np.ascontiguousarray(fields[:, 1 + width : 1 + 2 * width])
    return TokenScores(fields[:, 1 : 1 + width].copy(), bits.view(np.float64).astype(np.float32), fields[:, 0].copy())
