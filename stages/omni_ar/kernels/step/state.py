"""The device state that step kernels read and write. `omni_ar.run.state` allocates it."""

from dataclasses import dataclass

from torch import Tensor

from omni.device import SharedMemory
from omni_ar.kernels.sampling.state import SamplingState

LAST, LENGTH, DELTA, OUTPUTS, LIMIT, ACTIVE, GENERATION, COUNTED = range(8)
"""Columns of `RowState.words`."""

COLUMNS = 8
"""Number of columns."""


@dataclass(frozen=True, slots=True)
class RowState:
    """Per-row state; the first dimension is the row, N in all, the null row last. K ids of a row, E width of step rows.

    words: int64 `[N, 8]`, so that a phase gathers all it needs of its rows at once. By column: the newest token, tokens in the KV
    cache, rotary position minus length, generated tokens, how many there may be, whether the row still runs, its generation,
    whether its newest step gave it a token.
    next_codes: the codes' part of the next input embedding.
    conditioning: `[places, E]`, the device rows that condition each row's steps, `Limits.step_places` for a row; the last is
    zeros, for steps that none conditions. They are a request's own to its end: run again, it finds them here.
    handoff: int64 `[ring, N, 2 + K]`: `RowStatus`, how many tokens, and as many of the ids, of the steps in flight. In the host's
    memory: what a step says there needs no copy.
    counter: int64 `[1]`, steps that have sampled: it picks the handoff's slot, so that a captured graph need not be told.
    """

    words: Tensor
    block_table: Tensor
    next_codes: Tensor
    conditioning: Tensor
    handoff: SharedMemory
    counter: Tensor
    sampling: SamplingState

    def column(self, index: int) -> Tensor:
        """One of `words`, a view `[N]`."""
        return self.words[:, index]


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What phases of one step hand to each other. N rows, K ids of a row, P rotary axes, `tokens` the most that one step may have.

    places_AT: int64 `[P + 2, tokens]`: each token's positions, its KV slot and its payload slot, so that one copy places it.
    accepted_NW: status, count and ids of sampled tokens, as in one slot of `RowState.handoff`. hidden: `[N, D]`, of the sampled
    rows. scored_TD: of prompt tokens to be scored.
    scores: int64 `[ring, N + scored tokens, SCORE_WORDS]`.
    """

    ids_N: Tensor
    lengths_N: Tensor
    table_NM: Tensor
    places_AT: Tensor
    hidden: Tensor
    scored_TD: Tensor
    logits_NV: Tensor
    codes_ND: Tensor
    accepted_NW: Tensor
    scores: Tensor

    @property
    def positions_PT(self) -> Tensor:
        return self.places_AT[:-2]

    @property
    def slots_T(self) -> Tensor:
        return self.places_AT[-2]

    @property
    def payload_slots_T(self) -> Tensor:
        return self.places_AT[-1]
