"""The host's record of a request at an autoregressive stage."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Event
from omni.errors import StageError
from omni.payload import PageSlice
from omni.sampling import HostLogitsProcessor, LogitsEdit, SamplingParams, StopMatcher
from omni.stage import Feed, Produced
from omni.utils.draft_counts import DraftCounts
from omni_ar.drafters import DraftRequest
from omni_ar.inputs import Prompt, StepInputs
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.run.blocks.pool import BlockTable, PrefixKeys
from omni_ar.run.gain_history import GainHistory
from omni_ar.sampling.pack import flags_of


class RequestStatus(IntEnum):
    """A request has one status at a time. `ArRequest.set_status` changes it.

    | status | the request | set by |
    |---|---|---|
    | WAITING_FOR_INPUTS | lacks its prompt, a multimodal embedding, or the first conditioning of its steps | `ArWorker.open` |
    | WAITING | waits for a row and for blocks | `Scheduler.add`, `.unblock` |
    | PREEMPTED | lost its blocks, keeps its row, and waits for blocks | `Scheduler.plan`, `.unblock` |
    | BLOCKED | was first in line and cannot start now; others go first until `Scheduler.unblock` | `Scheduler.plan` |
    | RUNNING | has a row and blocks: it prefills or decodes | `Scheduler.plan`, `.launched` |
    | ISOLATING | a step that it was part of failed; its blocks are about to be taken | `Scheduler.retry` |
    | ISOLATED | waits, without blocks, for its turn to run in steps of its own | `Scheduler.plan` |
    | RUNNING_ISOLATED | runs in steps of its own, until it has sampled a token | `Scheduler.plan` |
    | FAILED | cannot go on; the worker reports the error before its tick ends | `Scheduler.plan` |
    | WAITING_FOR_LOGPROBS | has all its tokens; some log-probabilities are still to be read | `ArWorker.finish_request` |
    | FINISHED | has left the stage: finished, failed or aborted | `ArWorker.drop` |

    `ArRequest.paused` is not a status, since it is independent of all of them: a consumer that is behind may pause a request
    that waits for its prompt, or an isolated one, and the request has the same status when it is resumed. A paused request is
    in no step. Prefill and decode are not statuses either: `ArRequest.decoding` follows from two counts.

    Other kinds of stages mark the parts of a failed batch `isolated` (`omni.stage.worker.BatchPart`) and run them at once. Here a
    request gives up its blocks first and computes its tokens again, in several steps: three statuses describe its progress.
    """

    WAITING_FOR_INPUTS = auto()
    WAITING = auto()
    PREEMPTED = auto()
    BLOCKED = auto()
    RUNNING = auto()
    ISOLATING = auto()
    ISOLATED = auto()
    RUNNING_ISOLATED = auto()
    FAILED = auto()
    WAITING_FOR_LOGPROBS = auto()
    FINISHED = auto()

    @property
    def takes_tokens(self) -> bool:
        """Whether the request accepts tokens of steps in flight; otherwise they are discarded."""
        return self not in _ENDS


_S = RequestStatus
# A request with a row may have steps in flight whose tokens end it, in every status.
_ENDS = (_S.FAILED, _S.WAITING_FOR_LOGPROBS, _S.FINISHED)

TRANSITIONS: Mapping[RequestStatus, set[RequestStatus]] = {
    _S.WAITING_FOR_INPUTS: {_S.WAITING, _S.FINISHED},
    _S.WAITING: {_S.RUNNING, _S.BLOCKED, _S.FAILED, _S.FINISHED},
    _S.PREEMPTED: {_S.RUNNING, _S.BLOCKED, *_ENDS},
    _S.BLOCKED: {_S.WAITING, _S.PREEMPTED, _S.WAITING_FOR_LOGPROBS, _S.FINISHED},
    _S.RUNNING: {_S.PREEMPTED, _S.ISOLATING, *_ENDS},
    _S.ISOLATING: {_S.ISOLATED, *_ENDS},
    _S.ISOLATED: {_S.RUNNING_ISOLATED, *_ENDS},
    _S.RUNNING_ISOLATED: {_S.RUNNING, _S.ISOLATED, _S.ISOLATING, *_ENDS},
    _S.FAILED: {_S.FINISHED},
    _S.WAITING_FOR_LOGPROBS: {_S.FINISHED},
    _S.FINISHED: set(),
}
"""The statuses that may follow each status."""


class EmbeddingTensors(dict[str, Tensor]):
    """An embedding's tensors by name, for the model. Access to a tensor that its producer has not given raises StageError."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str, source: str) -> None:
        """name: the name of the embedding. source: the source of its `Feed`."""
        super().__init__(tensors)
        self._name = name
        self._source = source

    def __missing__(self, name: str) -> Tensor:
        producer, arrow, _ = self._source.partition("->")
        given = ", ".join(map(repr, self)) or "none"
        problem = f"it gave the tensors {given} as embedding {self._name!r}, and the model reads {name!r}"
        remedy = f"give them the model's names, in the stage or in the adapter of {self._source}"
        if not arrow:
            remedy = "give them the model's names in Frontend.prepare"
        raise StageError(producer, "giving an embedding", f"{problem}: {remedy}")


@dataclass(frozen=True, slots=True)
class ReadyEmbedding:
    """An embedding's tensors, usable on the stage's stream. copied: end of the copies. message: of tensors that still belong to
    their producer; None if all are copies. source: as in `Feed`."""

    tensors: dict[str, Tensor]
    copied: Event
    message: Feed | None
    source: str

    def part(self, name: str, entries: slice) -> "EmbeddingTensors":
        """Views of the tensors, whose second-last dimension is that of positions. name: the embedding's."""
        parts = {each: tensor[..., entries, :] for each, tensor in self.tensors.items()}
        return EmbeddingTensors(parts, name, self.source)

    def release(self, after: Event) -> None:
        """after: the end of the request's last step; COMPLETED if no step was launched. Steps follow the copies."""
        if self.message is not None:
            self.message.release(self.copied if after is COMPLETED else after)


@dataclass(frozen=True, slots=True)
class ArrivedConditioning:
    """Conditioning that has arrived. vectors: of its steps; None if it has none."""

    message: Feed
    inputs: StepInputs
    vectors: PageSlice | Tensor | None

    @property
    def count(self) -> int:
        return int(self.inputs.columns.shape[1])


@dataclass(frozen=True, slots=True)
class Row:
    """A stable index in per-row device state. generation: distinguishes the row's owner from earlier owners."""

    index: int
    generation: int


@dataclass(frozen=True, slots=True)
class WithheldToken:
    """A token that may be part of a stop string, and its messages. The next token adds this one's hidden state."""

    token: int
    messages: list[Produced]


@dataclass(slots=True, eq=False)
class ArRequest:
    """A request from `Open` to its end. `status` is its state; all other fields are data.

    Its tokens are the prompt's tokens, then the generated ones ("outputs"). The host counts:

    | count | tokens |
    |---|---|
    | `num_computed_tokens` | in the KV cache after the launched steps; an upper bound, since rows stop on the device |
    | `outputs` | generated, and read by the host |
    | `num_scheduled_outputs` | generated after the launched steps; an upper bound too, and with drafts a lower one |
    | `num_outputs_in_flight` | the difference of the last two |

    A request that starts, or starts again after a preemption, prefills up to `prefill_end`, where it samples; then it
    decodes. It starts again only without steps in flight, so every token is delivered once.
    """

    id: str
    sampling: SamplingParams
    open_sources: set[str]
    order: tuple[int, ...] = ()
    cache_salt: str = ""
    sample_index: int = 0
    params: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Parameters of the request's device-side logits processors."""
    stops: StopMatcher | None = None
    host_processors: tuple[HostLogitsProcessor, ...] = ()
    needs_first_step: bool = False
    """Whether the request waits for conditioning of its first step, like for its prompt, which shows that the producer
    has begun."""
    wants_layers: bool = False
    """Whether hidden states of layers are still to be emitted, at its end."""
    status: RequestStatus = field(default=RequestStatus.WAITING_FOR_INPUTS, init=False)
    """Changed by `set_status` only."""
    paused: bool = False
    """Whether a consumer is behind; the request is then in no step. Independent of the status, see `RequestStatus`."""
    finish_reason: str | None = None
    """The finish reason, once known. A request that its host processors have ended may still run one step, which gives
    no token but the hidden state of the last one."""
    edit: LogitsEdit | None = None
    """The host processors' edit of the next token's logits; None until it is available."""
    prompt: Prompt | None = None
    embeddings: dict[tuple[str, int], ReadyEmbedding] = field(default_factory=dict)
    """Kept until the request's end, since a preempted request runs its prompt again."""
    steps: list[NDArray[np.int64]] = field(default_factory=list)
    """Conditioning of each step, `step_fields` numbers each. Steps with vectors are listed once these are on
    the device."""
    step_pad: NDArray[np.int64] | None = None
    """Conditioning of all later steps."""
    num_vectors: int = 0
    """Number of conditioning vectors that have been copied for it."""
    step_arrivals: deque[ArrivedConditioning] = field(default_factory=deque)
    """Conditioning that has arrived and is not in `steps` yet, in order."""
    max_tokens: int = 0
    row: Row | None = None
    table: BlockTable | None = None
    keys: PrefixKeys | None = None
    published_blocks: int = 0
    """Number of leading blocks of the table that are in the prefix cache, or were offered to it."""
    drafter_tokens: int | None = None
    """Number of leading tokens of which a drafter with weights has keys and values, at least; None if it has been in every step."""
    num_computed_tokens: int = 0
    prefill_end: int = 0
    outputs: list[int] = field(default_factory=list)
    num_scheduled_outputs: int = 0
    steps_in_flight: int = 0
    """Number of launched steps that the host has not read."""
    last_scheduled_step: int = 0
    """Number of the last step with this request."""
    steps_at_end: int = 0
    """Number of its launched steps whose tokens it does not take, as it ended before."""
    steps_left_out: int = 0
    """Number of steps without it, after its last one, that counted its gain."""
    last_step_end: Event = COMPLETED
    """End of the last step that reads other stages' tensors that the request holds."""
    withheld: deque[WithheldToken] = field(default_factory=deque)
    """The newest tokens, while they may be part of a stop string."""
    num_scored_tokens: int = 0
    """Number of leading prompt positions whose next token's log-probability has been computed, or was not requested."""
    unread_scores: int = 0
    """Number of launched steps whose log-probabilities the host has not read."""
    saved_codes: Tensor | None = None
    """The frames of a preempted request's generated tokens, `[num_scheduled_outputs, G]`, including those in flight."""
    prompt_hidden_sent: bool = False
    """Whether a step that emits the prompt's hidden states has been launched."""
    num_frames: int = 0
    num_cached_tokens: int | None = None
    """Number of prompt tokens in the prefix cache at the first start; None before it."""
    gain_history: GainHistory = field(default_factory=GainHistory)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    flags: SamplingFlags = field(init=False)
    """The request's sampling work."""
    _offsets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flags = flags_of(self.sampling)

    def set_status(self, status: RequestStatus) -> None:
        """Changes the status. Raises RuntimeError for a transition that is not in `TRANSITIONS`."""
        if status not in TRANSITIONS[self.status]:
            raise RuntimeError(f"request {self.id} is {self.status.name} and cannot become {status.name}")
        if self.status.takes_tokens and not status.takes_tokens:
            self.steps_at_end = self.steps_in_flight
        self.status = status

    @property
    def length(self) -> int:
        assert self.prompt is not None
        return self.prompt.length

    @property
    def row_index(self) -> int:
        assert self.row is not None
        return self.row.index

    @property
    def held_table(self) -> BlockTable:
        assert self.table is not None
        return self.table

    @property
    def draft_gain(self) -> int:
        """Tokens that drafts are expected to add to the step to be planned, as in `DraftHandoffFields`."""
        return self.gain_history.gain(self.steps_ahead)

    @property
    def steps_ahead(self) -> int:
        """Number of steps planned after the last one whose tokens it has taken, of those that counted its gain."""
        return (self.steps_in_flight if self.status.takes_tokens else self.steps_at_end) + self.steps_left_out

    @property
    def has_all_steps(self) -> bool:
        """Whether no step will be launched for it."""
        return not self.status.takes_tokens or self.num_scheduled_outputs >= self.max_tokens

    @property
    def undrafted(self) -> bool:
        """Whether its steps verify no drafts: the effect of its logits processors depends on each token."""
        return bool(self.host_processors or self.flags.processors)

    @property
    def for_drafter(self) -> DraftRequest:
        assert self.prompt is not None
        return DraftRequest(self.prompt.columns[0], self.sampling, self.sample_index)

    @property
    def num_outputs_in_flight(self) -> int:
        return self.num_scheduled_outputs - len(self.outputs)

    @property
    def wants_scores(self) -> bool:
        return self.sampling.logprobs is not None or self.scores_prompt

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of its prompt remain to be computed."""
        return self.sampling.prompt_logprobs is not None and self.num_scored_tokens < self.length - 1

    @property
    def wants_hidden(self) -> bool:
        """Whether a consumer still needs hidden states of the prompt."""
        return self.prompt is not None and self.prompt.payload_positions.size > 0 and not self.prompt_hidden_sent

    @property
    def decoding(self) -> bool:
        """Whether its prefill is complete, so that the next step runs the newest token."""
        return self.table is not None and self.num_computed_tokens >= self.prefill_end

    @property
    def prompt_ready(self) -> bool:
        if self.prompt is None:
            return False
        return all((p.name, p.index) in self.embeddings for p in self.prompt.placeholders)

    def check_embeddings(self, stage: str) -> None:
        """Raises StageError for an embedding whose number of vectors is not its placeholder's number of positions: the encoder and
        the front end disagree, and the request is not to blame."""
        assert self.prompt is not None
        for placeholder in self.prompt.placeholders:
            for name, tensor in self.embeddings[placeholder.name, placeholder.index].tensors.items():
                vectors, positions = tensor.shape[-2], placeholder.positions.size
                if vectors != positions:
                    problem = (
                        f"{placeholder.called}: tensor {name!r} has {vectors} vectors for {positions} prompt positions"
                    )
                    remedy = "correct the encoder that gave it, or the placeholders of the front end"
                    raise StageError(stage, "taking its input", f"{problem}: {remedy}")

    @property
    def inputs_ready(self) -> bool:
        """Whether all inputs for queueing the request have arrived."""
        if not self.prompt_ready:
            return False
        begun = self.knows_all_steps or any(arrival.vectors is not None for arrival in self.step_arrivals)
        return begun or not self.needs_first_step

    def can_step(self, conditioned: bool) -> bool:
        """Whether its next step could run: below the token limit, with its conditioning and host processors' edit, if required."""
        if self.num_scheduled_outputs >= self.max_tokens:
            return False
        # Each token depends on the host processors' result for the tokens before.
        if self.host_processors and (self.steps_in_flight or self.edit is None):
            return False
        return not conditioned or self.step_pad is not None or self.num_scheduled_outputs - 1 < len(self.steps)

    def step(self, index: int) -> NDArray[np.int64]:
        """Conditioning of the step whose input is generated token `index`. Valid only after `can_step`."""
        if index < len(self.steps):
            return self.steps[index]
        assert self.step_pad is not None
        return self.step_pad

    @property
    def knows_all_steps(self) -> bool:
        """Whether conditioning of every step has arrived, in order or not."""
        return self.step_pad is not None or any(arrival.inputs.pad is not None for arrival in self.step_arrivals)

    def reset_for_recompute(self) -> None:
        """Resets a request without blocks: it will prefill from the beginning, up to the newest token that the host has read."""
        self.table = None
        self.num_computed_tokens = self.published_blocks = self.steps_left_out = 0
        self.drafter_tokens = None
        self.num_scheduled_outputs = len(self.outputs)
        self.prefill_end = self.length + self.num_scheduled_outputs

    def payload_offsets(self, blocks: int, block_size: int) -> list[int]:
        """For each of the first `blocks` blocks, a bit for each offset whose hidden state a consumer needs."""
        if not self.wants_hidden:
            return [0] * blocks
        assert self.prompt is not None
        if not self._offsets:
            self._offsets = [0] * -(-self.length // block_size)
            for position in self.prompt.payload_positions.tolist():
                self._offsets[position // block_size] |= 1 << position % block_size
        return self._offsets[:blocks]
