"""Records of one step. Deferred work reads them, since request, row and table may have changed since the launch."""

from dataclasses import dataclass

import msgspec
from torch import Tensor

from omni.device import Event, HostSlot
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.run.blocks.pool import BlockTable
from omni_ar.run.request import ArRequest, Row
from omni_ar.sampling.edits import StepEdits


class ScheduledRequest(msgspec.Struct, frozen=True):
    """A snapshot of a request at the launch of a step. emits_hidden: whether the step completes the hidden states of
    its prompt, and a consumer needs them."""

    request: ArRequest
    row: Row
    table: BlockTable
    emits_hidden: bool


def snapshot(request: ArRequest) -> ScheduledRequest:
    row, table = request.row, request.table
    assert row is not None
    assert table is not None
    return ScheduledRequest(request, row, table, request.wants_hidden)


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """Prompt tokens of one request that a step scores. first: index in the prompt. start: index among the step's scored tokens."""

    request: ArRequest
    first: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Inputs for scoring prompt tokens. hidden_sD: before the tokens. ids_s: the tokens. count: likeliest ids per token."""

    hidden_sD: Tensor
    ids_s: Tensor
    count: int


@dataclass(frozen=True, slots=True)
class StepContext:
    """The result of `execute_model`, for `sample_tokens`. count: number of sampled rows; 0 if no chunk reaches the end of its
    prompt. drafts: positions of each row besides its newest token. proposes: whether the host uses its report on drafts: of a
    step without chunks, at a stage with a drafter. draft_blocks: as in `StepLaunch`. padded_rows: rows of the captured batch
    that may replace this one, or None. logprobs: likeliest ids to score per sampled token; None if no row needs log-probabilities.
    rows, scored_chunks, emits: used by the host of rank 0 when it reads the results; emits: whether the step stores hidden states
    for consumers."""

    step: int
    count: int
    padded_rows: int | None
    rows_R: Tensor
    advance_R: Tensor
    hidden_RD: Tensor
    flags: SamplingFlags
    edits: StepEdits | None
    logprobs: int | None
    prompt_scores: PromptScores | None
    drafts: int = 0
    proposes: bool = False
    draft_blocks: int = 0
    rows: tuple[ScheduledRequest, ...] = ()
    scored_chunks: tuple[ScoredChunk, ...] = ()
    emits: bool = False

    @property
    def positions(self) -> int:
        """Number of sampled positions."""
        return self.count * (1 + self.drafts)


@dataclass(frozen=True, slots=True)
class TokenHandoff:
    """The first handoff. On the device the ids are already the next step's input; `host` has them once `ready` is done. made:
    consumers may read the step's hidden states once it is done; the same event as `ready` where tokens are not copied."""

    host: HostSlot
    ready: Event
    made: Event


@dataclass(frozen=True, slots=True)
class WrittenPages:
    """Pages that a step writes, complete once `ready` is done."""

    pages: Tensor
    ready: Event


@dataclass(frozen=True, slots=True)
class PayloadHandoff:
    """The second handoff: the pages of this step's hidden states and frames. No token waits for it."""

    hidden: WrittenPages | None
    codes: WrittenPages | None


@dataclass(frozen=True, slots=True)
class ScoreHandoff:
    """The third handoff: log-probabilities of `rows` sampled positions, then of prompt tokens. made: as in `TokenHandoff`. count,
    prompt_count: likeliest ids per sampled and per prompt token. requests: those with log-probabilities, each once."""

    host: HostSlot
    ready: Event
    made: Event
    rows: int
    count: int
    chunks: tuple[ScoredChunk, ...]
    prompt_count: int
    requests: tuple[ArRequest, ...]


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A launched step. tokens: None if it sampled nothing here. number: `StepContext.step`. drafts, proposes: as in `StepContext`.
    end: done after all of its work, except that it sends tokens to other ranks."""

    rows: tuple[ScheduledRequest, ...]
    tokens: TokenHandoff | None
    payload: PayloadHandoff
    scores: ScoreHandoff | None
    end: Event
    number: int
    drafts: int = 0
    proposes: bool = False

    @property
    def sampled(self) -> Event:
        return self.tokens.ready if self.tokens is not None else self.end
