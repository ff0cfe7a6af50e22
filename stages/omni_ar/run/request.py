"""What the host knows of one request at one stage."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Event
from omni.errors import InputError
from omni.payload import PageSlice
from omni.sampling import HostLogitsProcessor, LogitsEdit, SamplingParams, StopMatcher
from omni.stage import Feed, Produced
from omni_ar.inputs import Prompt, StepInputs
from omni_ar.run.blocks import BlockTable, PrefixKeys
from omni_ar.run.rows import Row
from omni_ar.sampling import SamplingFlags, flags_of


@dataclass(frozen=True, slots=True)
class ReadyEmbedding:
    """An embedding's tensors, usable on the stage's stream. copied: end of the copies among them.

    message: of tensors that still belong to their producer; None if all are copies.
    """

    tensors: dict[str, Tensor]
    copied: Event
    message: Feed | None

    def release(self, after: Event) -> None:
        """after: the end of the request's last step, COMPLETED if none was launched; a step follows the copies."""
        if self.message is not None:
            self.message.release(self.copied if after is COMPLETED else after)


@dataclass(frozen=True, slots=True)
class StepArrival:
    """Conditioning that came. rows: its steps' device rows; None if it has none."""

    message: Feed
    inputs: StepInputs
    rows: PageSlice | Tensor | None

    @property
    def count(self) -> int:
        """Steps."""
        return int(self.inputs.columns.shape[1])


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A token that the host knows of, and the messages that give it out. The next token adds the hidden state of this one."""

    token: int
    messages: list[Produced]


@dataclass(slots=True, eq=False)
class ArRequest:
    """A request from `Open` to its end.

    Its tokens are the prompt's, then the generated ones. The host counts what it knows, and what it has launched:

    | count | of |
    |---|---|
    | `computed` | tokens in the KV cache once the launched steps are over; a bound, since the device may have stopped the row |
    | `outputs` | generated tokens that are confirmed |
    | `in_flight` | generated tokens of launched steps that are not confirmed yet |
    | stale | tokens of launched steps that nobody will take, since the request is over (the stage's `stale_tokens`) |

    A request that starts, or starts again after it was preempted, runs up to `target`, where it samples; from there on it decodes.
    It starts again when nothing of it is in flight, so every token is delivered once.
    """

    id: str
    sampling: SamplingParams
    open_sources: set[str]
    rank: tuple[int, ...] = ()
    cache_salt: str = ""
    sample_index: int = 0
    params: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of the logits processors that it uses on the device."""
    stops: StopMatcher | None = None
    host_processors: tuple[HostLogitsProcessor, ...] = ()
    edit: LogitsEdit | None = None
    """Of a constrained request: what is to be done to the logits of its next token; None while that is not known."""
    closing: bool = False
    """Its host processors are through: one more step gives the hidden state of its last token, and no token."""
    prompt: Prompt | None = None
    embeddings: dict[tuple[str, int], ReadyEmbedding] = field(default_factory=dict)
    """Kept to the end: a preempted request runs its prompt again."""
    steps: list[NDArray[np.int64]] = field(default_factory=list)
    """What conditions each step, `step_words` of them. Of steps with device rows, those whose rows are in their places."""
    step_pad: NDArray[np.int64] | None = None
    """The same of all later steps."""
    places_taken: int = 0
    """How many of its places for device rows hold one."""
    step_arrivals: deque[StepArrival] = field(default_factory=deque)
    """Conditioning that has come and is not in `steps` yet, in order."""
    awaits_step: bool = False
    """Whether it is not to have a row yet: device rows, or the pad, come first, which shows that their producer has begun."""
    queued: bool = False
    """Whether the scheduler has it, or had it."""
    paused: bool = False
    """A consumer is behind: the request does not run."""
    suspect: bool = False
    """A step that it was part of failed: it runs by itself until it has sampled, so that only what is at fault fails."""
    max_tokens: int = 0
    row: Row | None = None
    table: BlockTable | None = None
    keys: PrefixKeys | None = None
    cached_blocks: int = 0
    """Blocks at the table's beginning that are in the prefix cache, or were offered to it."""
    started: bool = False
    """Whether it ever ran."""
    row_ready: bool = False
    """Whether the row's state on the device is that of this start."""
    computed: int = 0
    target: int = 0
    outputs: list[int] = field(default_factory=list)
    """Confirmed tokens; the device alone knows more."""
    scheduled: int = 0
    """Generated tokens whose step has been launched."""
    unread: int = 0
    """Steps in flight: launched, and the host does not know yet what they gave."""
    newest_step: int = 0
    """Number of the last step that it was part of."""
    held: deque["Confirmed"] = field(default_factory=deque)
    """Tokens at the end that may be part of a stop string, each with all that it produces."""
    scored: int = 0
    """Prompt positions from the beginning whose next token's log-probability has been computed, or was not asked for."""
    unread_scores: int = 0
    """Launched steps whose log-probabilities the host has not read."""
    ending: tuple[str, tuple[int, ...]] | None = None
    """Why it is over, and which tokens nobody gets: all that is missing are log-probabilities."""
    saved_codes: Tensor | None = None
    """Of a preempted request: the frames of its generated tokens, those that were in flight among them, `[scheduled, G]`."""
    lost: bool = False
    """Its frames could not be saved: it is about to fail."""
    hidden_sent: bool = False
    frames: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had at the first start."""
    last_step: Event = COMPLETED
    """End of the last step that reads what the request holds of other stages."""
    flags: SamplingFlags = field(init=False)
    """The work of sampling it."""
    _offsets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flags = flags_of(self.sampling)

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        assert self.prompt is not None
        return self.prompt.length

    @property
    def row_index(self) -> int:
        assert self.row is not None
        return self.row.index

    @property
    def held_table(self) -> BlockTable:
        """The table of a request that runs."""
        assert self.table is not None
        return self.table

    @property
    def in_flight(self) -> int:
        """Generated tokens that launched steps will give, unless the device stopped the row."""
        return self.scheduled - len(self.outputs)

    @property
    def constrained(self) -> bool:
        """Whether each token depends on what the host says about the ones before."""
        return bool(self.host_processors)

    @property
    def wants_scores(self) -> bool:
        """Whether steps that it is part of have log-probabilities to give."""
        asked = self.sampling
        return asked.logprobs is not None or self.scores_prompt

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of its prompt are still to be computed."""
        return self.sampling.prompt_logprobs is not None and self.scored < self.length - 1

    @property
    def wants_hidden(self) -> bool:
        """Whether a consumer still needs hidden states of the prompt."""
        return self.prompt is not None and self.prompt.payload_positions.size > 0 and not self.hidden_sent

    @property
    def decoding(self) -> bool:
        """Whether the next step needs nothing but the token of the one before."""
        return self.table is not None and self.computed >= self.target

    @property
    def prompt_ready(self) -> bool:
        """The prompt is here, and so is every embedding it waits for."""
        if self.prompt is None:
            return False
        return all((p.name, p.index) in self.embeddings for p in self.prompt.placeholders)

    def check_embeddings(self) -> None:
        """Raises InputError for an embedding with another number of rows than its placeholder has positions."""
        assert self.prompt is not None
        for placeholder in self.prompt.placeholders:
            for name, tensor in self.embeddings[placeholder.name, placeholder.index].tensors.items():
                if tensor.shape[-2] != placeholder.positions.size:
                    problem = (
                        f"tensor {name!r} has {tensor.shape[-2]} rows for {placeholder.positions.size} prompt positions"
                    )
                    raise InputError(placeholder.called, problem, "give one row for each position")

    def can_step(self, conditioned: bool) -> bool:
        """Whether the step after the newest token could run: below the limit, and conditioned if the model wants that."""
        if self.lost or self.scheduled >= self.max_tokens:
            return False
        if self.host_processors and (self.unread or self.edit is None):
            return False
        return not conditioned or self.step_pad is not None or self.scheduled - 1 < len(self.steps)

    def step(self, index: int) -> NDArray[np.int64]:
        """What conditions the step whose input is generated token `index`. Only after `can_step`."""
        if index < len(self.steps):
            return self.steps[index]
        assert self.step_pad is not None
        return self.step_pad

    @property
    def knows_all_steps(self) -> bool:
        """Whether conditioning of every step has come, if not all of it is in its place."""
        return self.step_pad is not None or any(arrival.inputs.pad is not None for arrival in self.step_arrivals)

    def rewind(self) -> None:
        """Nothing of the request is in memory any more: it will run from the beginning, up to its newest confirmed token."""
        self.table = None
        self.row_ready = False
        self.computed = self.cached_blocks = 0
        self.scheduled = len(self.outputs)
        self.target = self.length + self.scheduled

    def payload_offsets(self, blocks: int, block_size: int) -> list[int]:
        """For each of the first `blocks` blocks: the offsets (as bits) whose hidden states a consumer needs."""
        if not self.wants_hidden:
            return [0] * blocks
        assert self.prompt is not None
        if not self._offsets:
            self._offsets = [0] * -(-self.length // block_size)
            for position in self.prompt.payload_positions.tolist():
                self._offsets[position // block_size] |= 1 << position % block_size
        return self._offsets[:blocks]
