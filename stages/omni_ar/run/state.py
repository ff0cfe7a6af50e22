"""Allocates the device state of an autoregressive stage: the only source of truth for tokens, lengths and counts.

| buffer | written by | read by |
|---|---|---|
| `RowState` of a row | `start_rows`, then phases of each step | the next step's phases, same stream |
| `StepBuffers` except `scores`, `ChunkBuffers` | phases of one step | later phases of that step, same stream |
| `RowState.handoff[slot]` | `accept_tokens` or `accept_drafts`, `predict_codes` | the host, after its event; rewritten once read |
| `StepBuffers.scores[slot]` | `score_tokens`, `score_prompt` | their copy, on its own stream; rewritten once the host has read it |
| `RowState.conditioning` of a row | `gather_rows`, `copy_rows`, each vector once | `embed_inputs`, same stream |
| `Pages.layers` | `run_forward`, every position | the consumer's gather, after the request's last token; freed as `codes` |
| `Pages.drafts` | `draft_tokens`, `follow_tokens`, `prefill_drafts` | the same phases of later steps, same stream |
| `FeatureBuffers` of a row | `keep_features`, `keep_chunk_features` | next step's `draft_tokens`, `follow_tokens`, same stream |
| `Pages.codes` | `predict_codes` | the consumer's gather, after the payload event; freed with the request's blocks |
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni.device import Device, Stream
from omni.sampling import MAX_LOGPROBS
from omni_ar.attention import KVCache
from omni_ar.drafters import CacheShape, Drafter, PagedDrafter
from omni_ar.kernels.sampling.state import SamplingState
from omni_ar.kernels.step.draft_state import DRAFT_FIELDS, DraftState
from omni_ar.kernels.step.handoff import handoff_width
from omni_ar.kernels.step.state import ROW_FIELDS, RowState, StepBuffers
from omni_ar.model import ArModel, CodecModel
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits

NOT_FINITE = -2
"""The token of a row with NaN or positive infinity among its logits (`ArOptions.check_logits`)."""
IMPOSSIBLE = -1
"""The id of a row without a possible id."""

SCORE_FIELDS = 1 + 2 * (1 + MAX_LOGPROBS)
"""Number of int64 fields of one token's log-probabilities: its rank, the ids, and the bits of one float64 per id."""


def allocate_rows(
    device: Device,
    model: ArModel,
    limits: Limits,
    dtype: torch.dtype,
    processors: Sequence[NamedProcessor] = (),
    drafter: Drafter | None = None,
    *,
    drafts_cost: bool = False,
) -> RowState:
    """drafts_cost: whether there are `DraftState.costs`, which the caller fills."""
    rows = limits.null_row + 1
    return RowState(
        fields=device.zeros((rows, ROW_FIELDS), torch.int64),
        block_table=device.zeros((rows, limits.max_blocks), torch.int64),
        next_codes=device.zeros((rows, next_width(model)), dtype),
        conditioning=device.zeros((limits.null_vector + 1, model.shape.step_width), dtype),
        handoff=device.shared((limits.ring, rows, handoff_width(limits.step_ids, limits.drafts > 0)), torch.int64),
        counter=device.zeros((1,), torch.int64),
        sampling=SamplingState.allocate(
            device.zeros, rows, model.shape.vocab_size, {p.name: p.width for p in processors}
        ),
        drafts=_allocate_drafts(device, limits, drafter, drafts_cost) if limits.drafts else None,
    )


def _allocate_drafts(device: Device, limits: Limits, drafter: Drafter | None, cost: bool) -> DraftState:
    rows = limits.null_row + 1
    return DraftState(
        text=device.zeros((rows, limits.max_model_len + 1), torch.int32),
        drafts=device.zeros((rows, limits.drafts), torch.int64),
        fields=device.zeros((rows, DRAFT_FIELDS), torch.int64),
        adaptive=limits.adaptive_drafts,
        costs=device.zeros((limits.rows + 1,), torch.int64) if cost else None,
        always_runs=not isinstance(drafter, PagedDrafter),
    )


def allocate_step_buffers(device: Device, model: ArModel, limits: Limits, dtype: torch.dtype) -> StepBuffers:
    shape, rows, tokens = model.shape, limits.decode_tokens, limits.step_tokens

    def integers(*size: int) -> Tensor:
        return device.zeros(size, torch.int64)

    return StepBuffers(
        ids_N=integers(rows),
        lengths_N=integers(rows),
        table_NM=integers(rows, limits.max_blocks),
        positions_slots_AT=integers(shape.position_axes + 2, tokens),
        hidden=device.zeros((rows, shape.hidden_width), dtype),
        scored_TD=device.zeros((limits.scored_tokens, shape.hidden_width), dtype),
        logits_NV=device.zeros((rows, shape.vocab_size), shape.logits_dtype or dtype),
        codes_ND=device.zeros((rows, next_width(model)), dtype),
        sampled_N=integers(rows if limits.drafts else 0),
        accepted_NW=integers(limits.rows, handoff_width(limits.step_ids, limits.drafts > 0)),
        scores=integers(limits.ring, rows + limits.scored_tokens, SCORE_FIELDS),
    )


@dataclass(frozen=True, slots=True)
class Pages:
    """hidden: `[blocks, block_size, payload_width]`. codes: int64 `[blocks, block_size, G]`. None where the model has none.
    layers: `[blocks, block_size, L * hidden_width]`, hidden states of L layers; None if none are kept. drafts: keys and values of a
    `PagedDrafter`; None without one.

    Block 0 is the null block: it absorbs the writes of stopped rows.
    """

    kv: KVCache
    hidden: Tensor | None
    codes: Tensor | None
    layers: Tensor | None = None
    drafts: KVCache | None = None

    @classmethod
    def allocate(
        cls,
        device: Device,
        model: ArModel,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        layers: int = 0,
        stores: bool = True,
        drafts: CacheShape | None = None,
    ) -> "Pages":
        """num_blocks: excludes the null block. layers: number of those whose hidden states are kept. stores: whether hidden states
        are stored here: at the ranks with the last layer range. drafts: keys and values of a `PagedDrafter`."""
        shape = model.shape
        pages = (num_blocks + 1, block_size)
        groups = model.num_groups if isinstance(model, CodecModel) else 0
        return cls(
            KVCache.allocate(device.zeros, shape.num_kv_layers, *pages, shape.num_kv_heads, shape.head_dim, dtype),
            device.zeros((*pages, shape.payload_width), dtype) if shape.payload_width and stores else None,
            device.zeros((*pages, groups), torch.int64) if groups else None,
            device.zeros((*pages, layers * shape.hidden_width), dtype) if layers and stores else None,
            KVCache.allocate(device.zeros, drafts.num_layers, *pages, drafts.num_kv_heads, drafts.head_dim, dtype)
            if drafts is not None
            else None,
        )


def block_bytes(
    model: ArModel,
    block_size: int,
    dtype: torch.dtype,
    layers: int = 0,
    *,
    stores: bool = True,
    drafts: CacheShape | None = None,
) -> int:
    """Bytes of device memory of one block. layers, stores, drafts: as of `Pages.allocate`."""
    shape = model.shape
    groups = model.num_groups if isinstance(model, CodecModel) else 0
    kv = 2 * shape.num_kv_layers * shape.num_kv_heads * shape.head_dim
    if drafts is not None:
        kv += 2 * drafts.num_layers * drafts.num_kv_heads * drafts.head_dim
    stored = shape.payload_width + layers * shape.hidden_width
    numbers = kv + (stored if stores else 0)
    return block_size * (numbers * dtype.itemsize + groups * torch.int64.itemsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources that all launches of a stage share. name: of its stream and graphs, and for logs. priority: of its streams.
    drafter: None if its steps give each row one token."""

    name: str
    device: Device
    stream: Stream
    model: ArModel
    limits: Limits
    dtype: torch.dtype
    rows: RowState
    buffers: StepBuffers
    priority: int = 0
    drafter: Drafter | None = None


def drafter_cache(drafter: Drafter | None) -> CacheShape | None:
    """The keys and values that a drafter has of its own."""
    return drafter.cache_shape if isinstance(drafter, PagedDrafter) else None


def feature_layers(drafter: Drafter | None) -> tuple[int, ...]:
    """The numbers of the hidden states that a drafter reads."""
    shape = drafter.feature_shape if isinstance(drafter, PagedDrafter) else None
    return shape.layers if shape is not None else ()


@dataclass(frozen=True, slots=True)
class ChunkBuffers:
    """Buffers between the phases and a captured forward of a batch with chunks. P chunks; `tokens`: maximum tokens of a batch.

    inputs_TD: input embeddings. rows_P4: `AttentionMetadata.prefill_rows_P4`. outputs_TD: hidden states of all tokens.
    """

    inputs_TD: Tensor
    rows_P4: Tensor
    outputs_TD: Tensor

    @classmethod
    def allocate(cls, stage: Resources, tokens: int) -> "ChunkBuffers":
        zeros, shape = stage.device.zeros, stage.model.shape
        return cls(
            inputs_TD=zeros((tokens, shape.input_width or shape.hidden_width), stage.dtype),
            rows_P4=zeros((stage.limits.captured_chunks, 4), torch.int64),
            outputs_TD=zeros((tokens, shape.hidden_width), stage.dtype),
        )


def next_width(model: ArModel) -> int:
    """Width of `Codes.next_RD`; 0 for a model without codes."""
    return model.next_width if isinstance(model, CodecModel) else 0
