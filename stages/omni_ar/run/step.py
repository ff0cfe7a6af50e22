"""Records of one step. Deferred work reads them, since request, row and table may have changed since the launch."""

from dataclasses import dataclass

import msgspec
from torch import Tensor

from omni.device import Event, HostSlot
from omni_ar.run.blocks.pool import BlockTable
from omni_ar.run.launch import StepLaunch
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
class StepRequests:
    """The requests of a step, for the host of rank 0 when it reads the results; empty at other ranks. rows: those that get a token.
    emits: whether the step stores hidden states for consumers."""

    rows: tuple[ScheduledRequest, ...] = ()
    scored_chunks: tuple[ScoredChunk, ...] = ()
    emits: bool = False


NO_REQUESTS = StepRequests()


@dataclass(frozen=True, slots=True)
class StepContext:
    """The result of `execute_model`, for `sample_tokens`. rows_R, advance_R: uploaded inputs of the sampled rows; there are none if
    no chunk reaches the end of its prompt. hidden_RD: of each sampled position."""

    launch: StepLaunch
    requests: StepRequests
    rows_R: Tensor
    advance_R: Tensor
    hidden_RD: Tensor
    edits: StepEdits | None
    prompt_scores: PromptScores | None


@dataclass(frozen=True, slots=True)
class TokenHandoff:
    """The first handoff. On the device the ids are already the next step's input; `host` has them once `ready` is done. made:
    consumers may read the step's hidden states once it is done; the same event as `ready` where tokens are not copied."""

    host: HostSlot
    ready: Event
    made: Event

    def read(self, count: int) -> list[list[int]]:
        """Returns the columns of `count` rows, and frees the slot. Once `ready` is done."""
        rows: list[list[int]] = self.host.read()[:count].tolist()
        self.host.release()
        return rows


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
    """A launched step. tokens: None if it sampled nothing here. end: done after all of its work, except that it sends tokens to
    other ranks."""

    launch: StepLaunch
    requests: StepRequests
    tokens: TokenHandoff | None
    payload: PayloadHandoff
    scores: ScoreHandoff | None
    end: Event

    @property
    def sampled(self) -> Event:
        return self.tokens.ready if self.tokens is not None else self.end
