"""The device state that step kernels read and write. `omni_ar.run.state` allocates it."""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from omni.device import SharedMemory
from omni_ar.kernels.sampling.state import SamplingState
from omni_ar.kernels.step.draft_state import DraftState

T = TypeVar("T")


class RowFields(NamedTuple, Generic[T]):
    """One row of `RowState.fields`, or one column per field. The order is that of the columns.

    last: the newest token. length: tokens in the KV cache. delta: rotary position minus length. outputs: number of
    generated tokens. limit: its maximum. active: whether the row still runs. row: its own index,
    so that the fields alone identify their owner. counted: whether its newest step gave it a token.
    """

    last: T
    length: T
    delta: T
    outputs: T
    limit: T
    active: T
    row: T
    counted: T


ROW_FIELDS = len(RowFields._fields)
FIELD_INDEX = RowFields(*range(ROW_FIELDS))
"""The column of each field."""


@dataclass(frozen=True, slots=True)
class RowState:
    """Per-row state. The first dimension is the row: N rows, the null row last. W handoff fields, E width of step vectors.

    fields: int64 `[N, F]`, the `RowFields` of each row, so that a phase gathers all fields of its rows at once.
    columns: views `[N]` of `fields`, one for each field.
    next_codes: the codes' part of the next input embedding.
    conditioning: `[vectors, E]`, the vectors that condition each row's steps, `Limits.max_step_vectors` per row; the last
    one is zeros, for steps without a vector. A request's vectors are unchanged until its end, so a preempted
    request reads them again.
    handoff: int64 `[ring, N, W]`, for each step in flight: the `HandoffFields` of each row; with a drafter, then its
    `DraftHandoffFields`. It is in host memory, so that a step's results need no copy. counter: int64 `[1]`, number of steps that
    have sampled. It selects the handoff slot, so that a captured graph has no such argument. drafts: None without a drafter.
    """

    fields: Tensor
    block_table: Tensor
    next_codes: Tensor
    conditioning: Tensor
    handoff: SharedMemory
    counter: Tensor
    sampling: SamplingState
    drafts: DraftState | None = None
    columns: RowFields[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", RowFields(*self.fields.unbind(1)))


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Buffers between the phases of one step. N rows, or positions of rows where there are drafts; W handoff fields, P rotary axes;
    `tokens`: maximum tokens of a step.

    positions_slots_AT: int64 `[P + 2, tokens]`: each token's positions, KV slot and payload slot, so that one copy fills them.
    sampled_N: int64, the id that is sampled at each position; empty without a drafter. accepted_NW: each row's results, as in
    one slot of `RowState.handoff`. hidden: `[N, D]`, hidden states of the sampled rows. scored_TD: hidden states of
    prompt tokens to be scored.
    scores: int64 `[ring, N + scored tokens, SCORE_FIELDS]`.
    """

    ids_N: Tensor
    lengths_N: Tensor
    table_NM: Tensor
    positions_slots_AT: Tensor
    hidden: Tensor
    scored_TD: Tensor
    logits_NV: Tensor
    codes_ND: Tensor
    sampled_N: Tensor
    accepted_NW: Tensor
    scores: Tensor

    @property
    def positions_PT(self) -> Tensor:
        return self.positions_slots_AT[:-2]

    @property
    def slots_T(self) -> Tensor:
        return self.positions_slots_AT[-2]

    @property
    def payload_slots_T(self) -> Tensor:
        return self.positions_slots_AT[-1]
