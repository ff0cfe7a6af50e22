"""Records of one step. Deferred work reads them, since request, row and table may have changed meanwhile."""

from dataclasses import dataclass

import msgspec
from torch import Tensor

from omni.device import Event, HostSlot
from omni_ar.run.blocks import BlockTable
from omni_ar.run.request import ArRequest, Row
from omni_ar.sampling import SamplingFlags, StepEdits


class Scheduled(msgspec.Struct, frozen=True):
    """A request as this step saw it. emits_hidden: the hidden states of its prompt are complete with this step, and wanted."""

    request: ArRequest
    row: Row
    table: BlockTable
    emits_hidden: bool


def snapshot(request: ArRequest) -> Scheduled:
    """The request as it is when the step is launched."""
    row, table = request.row, request.table
    assert row is not None
    assert table is not None
    return Scheduled(request, row, table, request.wants_hidden)


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """Prompt tokens of one request that a step scores. first: index of the first in the prompt; start: among the step's."""

    request: ArRequest
    first: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Inputs for scoring prompt tokens. hidden_sD: the states before them, ids_s: the tokens. count: likeliest ids each."""

    chunks: tuple[ScoredChunk, ...]
    hidden_sD: Tensor
    ids_s: Tensor
    count: int


@dataclass(frozen=True, slots=True)
class StepContext:
    """All that `execute_model` leaves for `sample_tokens`.

    rows: those that are sampled, perhaps none: the step may hold nothing but chunks that do not reach their prompt's end.
    padded: rows of the captured batch that may stand for this one; None if there is none.
    emits: whether it stores hidden states for consumers.
    """

    step: int
    rows: tuple[Scheduled, ...]
    padded: int | None
    rows_R: Tensor
    advance_R: Tensor
    hidden_RD: Tensor
    flags: SamplingFlags
    edits: StepEdits | None
    prompt_scores: PromptScores | None
    emits: bool


@dataclass(frozen=True, slots=True)
class TokenHandoff:
    """The first handoff: the ids are the next step's input on the device already; `host` has them once `ready` is done.

    made: done when all that was launched for it on the stage's stream is.
    """

    host: HostSlot
    ready: Event
    made: Event

    def read(self, count: int) -> list[list[int]]:
        """Status, number of tokens and the tokens of each row. Once, after `ready` is done: it frees the slot."""
        results: list[list[int]] = self.host.read()[:count].tolist()
        self.host.release()
        return results


@dataclass(frozen=True, slots=True)
class Written:
    """Pages that a step has written, complete when `ready` is done."""

    pages: Tensor
    ready: Event


@dataclass(frozen=True, slots=True)
class PayloadHandoff:
    """The second handoff: the pages of this step's hidden states and frames, for which no token waits."""

    hidden: Written | None
    codes: Written | None


@dataclass(frozen=True, slots=True)
class ScoreHandoff:
    """The third handoff: log-probabilities, of `rows` sampled tokens and then of prompt tokens.

    made: as of `TokenHandoff`. count, prompt_count: likeliest ids of each of the two. requests: those that asked for any of it,
    each once.
    """

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
    """A launched step. tokens: None if it sampled nothing. end: done when all of it has run."""

    rows: tuple[Scheduled, ...]
    tokens: TokenHandoff | None
    payload: PayloadHandoff
    scores: ScoreHandoff | None
    end: Event

    @property
    def sampled(self) -> Event:
        """Done when the host can read the sampled tokens."""
        return self.tokens.ready if self.tokens is not None else self.end
