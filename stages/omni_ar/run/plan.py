"""The requests and tokens of one step."""

from dataclasses import dataclass

from omni_ar.run.request import ArRequest


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens `start` to `start + length` of a request that is not decoding yet. first: whether the step sets its row up. last:
    whether it reaches the newest token, so that the step samples the next one. replay: whether its tokens are generated ones of a
    preempted request."""

    request: ArRequest
    start: int
    length: int
    first: bool
    last: bool
    replay: bool


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block that was added to a decoding request's table, at `index`."""

    request: ArRequest
    index: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, and its number: rows that decode, then chunks, with replays before prompts. drafts: positions of each decode row
    besides its newest token; 0 beside chunks. wants_drafts: whether drafts of the decode rows are worth their time."""

    number: int
    decodes: tuple[ArRequest, ...]
    chunks: tuple[PrefillChunk, ...] = ()
    new_blocks: tuple[NewBlock, ...] = ()
    drafts: int = 0
    wants_drafts: bool = False

    def runs_drafter(self, drafts_late: bool) -> bool:
        """Whether a drafter with weights runs the newest tokens of the decode rows. drafts_late: `Limits.drafts_late`: it then runs
        at the end of the step, for the next step of all sampled rows, if some of them are likely to want drafts."""
        if drafts_late:
            return self.wants_drafts or any(chunk.last and not chunk.request.undrafted for chunk in self.chunks)
        return self.wants_drafts or bool(self.chunks)

    @property
    def chunk_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def requests(self) -> tuple[ArRequest, ...]:
        return self.decodes + tuple(chunk.request for chunk in self.chunks)

    @property
    def sampled(self) -> tuple[ArRequest, ...]:
        """Requests that get a token, in the order of the batch's rows."""
        return self.decodes + tuple(chunk.request for chunk in self.chunks if chunk.last)

    @property
    def newest_input(self) -> int:
        """The newest step whose tokens the decode rows need; 0 for none."""
        return max((request.last_scheduled_step for request in self.decodes), default=0)

    @property
    def replays(self) -> tuple[PrefillChunk, ...]:
        return tuple(chunk for chunk in self.chunks if chunk.replay)

    @property
    def prompts(self) -> tuple[PrefillChunk, ...]:
        return tuple(chunk for chunk in self.chunks if not chunk.replay)

    @property
    def shape(self) -> "BatchShape":
        """Without padding."""
        return BatchShape(len(self.decodes), self.chunk_tokens, len(self.chunks))

    @property
    def starts(self) -> tuple[ArRequest, ...]:
        return tuple(chunk.request for chunk in self.chunks if chunk.first)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The layout of a batch, with or without padding: number of decode rows, of tokens in chunks, and of chunks."""

    decodes: int
    tokens: int
    chunks: int

    @property
    def total(self) -> int:
        return self.decodes + self.tokens
