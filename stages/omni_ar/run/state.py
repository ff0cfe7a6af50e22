"""Device state of an autoregressive stage: the only truth about tokens, lengths and counts.

| buffer | written by | read by |
|---|---|---|
| `RowState` of a row | `start_rows`, then phases of each step | the next step's phases, same stream |
| `StepBuffers` but for `scores`, `ChunkBuffers` | phases of one step | later phases of that step, same stream |
| `RowState.handoff[turn]` | `accept_tokens`, `predict_codes` | the host, after the token event; rewritten once read |
| `StepBuffers.scores[slot]` | `score_tokens`, `score_prompt` | their copy, on its own stream; rewritten once the host has read it |
| `RowState.conditioning` of a row | `gather_step_rows`, `store_step_rows`, each place once | `embed_inputs`, same stream |
| `Pages.codes` | `predict_codes` | the consumer's gather, after the payload event; freed with the request's blocks |
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni.device import Device, SharedMemory
from omni.sampling import MAX_LOGPROBS
from omni_ar.model import ArModel, ArShape, CodecModel
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.sampling import SamplingState

IMPOSSIBLE = -1
"""The id of a row for which no id was possible."""

LAST, LENGTH, DELTA, OUTPUTS, LIMIT, ACTIVE, GENERATION, COUNTED = range(8)
"""Columns of `RowState.words`."""

COLUMNS = 8
"""Columns there are."""

SCORE_WORDS = 1 + 2 * (1 + MAX_LOGPROBS)
"""int64 words of one token's log-probabilities: its rank, ids, and the bits of as many float64."""


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

    @classmethod
    def allocate(
        cls,
        device: Device,
        model: ArModel,
        limits: Limits,
        dtype: torch.dtype,
        processors: Sequence[NamedProcessor] = (),
    ) -> "RowState":
        rows = limits.null_row + 1
        return cls(
            words=device.zeros((rows, COLUMNS), torch.int64),
            block_table=device.zeros((rows, limits.max_blocks), torch.int64),
            next_codes=device.zeros((rows, next_width(model)), dtype),
            conditioning=device.zeros((limits.null_place + 1, model.shape.step_width), dtype),
            handoff=device.shared((limits.ring, rows, 2 + limits.step_ids), torch.int64),
            counter=device.zeros((1,), torch.int64),
            sampling=SamplingState.allocate(
                device.zeros, rows, model.shape.vocab_size, {p.name: p.width for p in processors}
            ),
        )

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

    @classmethod
    def allocate(cls, device: Device, model: ArModel, limits: Limits, dtype: torch.dtype) -> "StepBuffers":
        shape, rows, tokens = model.shape, limits.rows, limits.step_tokens

        def words(*size: int) -> Tensor:
            return device.zeros(size, torch.int64)

        return cls(
            ids_N=words(rows),
            lengths_N=words(rows),
            table_NM=words(rows, limits.max_blocks),
            places_AT=words(shape.position_axes + 2, tokens),
            hidden=device.zeros((rows, shape.hidden_width), dtype),
            scored_TD=device.zeros((limits.scored_tokens, shape.hidden_width), dtype),
            logits_NV=device.zeros((rows, shape.vocab_size), shape.logits_dtype or dtype),
            codes_ND=device.zeros((rows, next_width(model)), dtype),
            accepted_NW=words(rows, 2 + limits.step_ids),
            scores=words(limits.ring, rows + limits.scored_tokens, SCORE_WORDS),
        )

    @property
    def positions_PT(self) -> Tensor:
        return self.places_AT[:-2]

    @property
    def slots_T(self) -> Tensor:
        return self.places_AT[-2]

    @property
    def payload_slots_T(self) -> Tensor:
        return self.places_AT[-1]


@dataclass(frozen=True, slots=True)
class ChunkBuffers:
    """What phases hand to a captured forward of a batch with chunks, and it to them. P chunks, `tokens` the most of a batch.

    inputs_TD: input embeddings. rows_P4: `AttentionMetadata.prefill_rows_P4`. outputs_TD: hidden states of all tokens.
    """

    inputs_TD: Tensor
    rows_P4: Tensor
    outputs_TD: Tensor

    @classmethod
    def allocate(
        cls, device: Device, shape: ArShape, limits: Limits, tokens: int, dtype: torch.dtype
    ) -> "ChunkBuffers":
        return cls(
            inputs_TD=device.zeros((tokens, shape.input_width or shape.hidden_width), dtype),
            rows_P4=device.zeros((limits.captured_chunks, 4), torch.int64),
            outputs_TD=device.zeros((tokens, shape.hidden_width), dtype),
        )


def next_width(model: ArModel) -> int:
    """Width of the codes' part of an input embedding; 0 for a model without codes."""
    return model.next_width if isinstance(model, CodecModel) else 0
