"""Device state of an autoregressive stage: the only truth about tokens, lengths and counts.

| buffer | written by | read by |
|---|---|---|
| `RowState` of a row | `start_rows`, then phases of each step | the next step's phases, same stream |
| `StepBuffers` | phases of one step | later phases of that step, same stream |
| `StepBuffers.handoff[step % ring]` | `sample_rows` | the token copy, on the copy stream; rewritten `ring` steps later |
| `code_pages` | `predict_codes` | the consumer's gather, after the payload event; freed with the request's blocks |
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from omni.device import Device
from omni_ar.model import ArModel, CodecModel
from omni_ar.run.limits import MAX_STOP_IDS, Limits
from omni_ar.sampling import SamplingState

RUNNING, STOPPED, FULL = 0, 1, 2
"""Status of a row after a token: goes on, hit a stop id, reached its token limit."""


@dataclass(frozen=True, slots=True)
class RowState:
    """Per-row state; the first dimension is the row, N in all.

    last_sampled: newest token. lengths: tokens in the KV cache. position_delta: rotary position minus length.
    num_outputs, limits: generated tokens, and how many there may be. next_codes: the codes' part of the next input embedding.
    """

    last_sampled: Tensor
    lengths: Tensor
    position_delta: Tensor
    num_outputs: Tensor
    limits: Tensor
    active: Tensor
    stop_ids: Tensor
    block_table: Tensor
    next_codes: Tensor
    sampling: SamplingState
    true: Tensor
    ones: Tensor
    counting: Tensor

    @classmethod
    def allocate(cls, device: Device, model: ArModel, rows: int, max_blocks: int, dtype: torch.dtype) -> "RowState":
        def words(*shape: int) -> Tensor:
            return device.zeros(shape, torch.int64)

        return cls(
            last_sampled=words(rows),
            lengths=words(rows),
            position_delta=words(rows),
            num_outputs=words(rows),
            limits=words(rows),
            active=device.zeros((rows,), torch.bool),
            stop_ids=words(rows, MAX_STOP_IDS),
            block_table=words(rows, max_blocks),
            next_codes=device.zeros((rows, next_width(model)), dtype),
            sampling=SamplingState.allocate(device.zeros, rows, model.shape.vocab_size),
            true=device.ones((1,), torch.bool),
            ones=device.ones((rows,), torch.int64),
            counting=device.arange(rows),
        )


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What phases of one step hand to each other. N rows, P rotary axes, `tokens` the most that one step may have."""

    ids_N: Tensor
    lengths_N: Tensor
    table_NM: Tensor
    positions_PT: Tensor
    slots_T: Tensor
    hidden_ND: Tensor
    logits_NV: Tensor
    codes_ND: Tensor
    handoff: Tensor
    """int64 `[ring, N, 2]`: sampled id and status."""

    @classmethod
    def allocate(cls, device: Device, model: ArModel, limits: Limits, ring: int, dtype: torch.dtype) -> "StepBuffers":
        shape, rows = model.shape, limits.rows
        return cls(
            ids_N=device.zeros((rows,), torch.int64),
            lengths_N=device.zeros((rows,), torch.int64),
            table_NM=device.zeros((rows, limits.max_blocks), torch.int64),
            positions_PT=device.zeros((shape.position_axes, limits.step_tokens), torch.int64),
            slots_T=device.zeros((limits.step_tokens,), torch.int64),
            hidden_ND=device.zeros((rows, shape.hidden_width), dtype),
            logits_NV=device.zeros((rows, shape.vocab_size), torch.float32),
            codes_ND=device.zeros((rows, next_width(model)), dtype),
            handoff=device.zeros((ring, rows, 2), torch.int64),
        )


def next_width(model: ArModel) -> int:
    """Width of the codes' part of an input embedding; 0 for a model without codes."""
    return model.next_width if isinstance(model, CodecModel) else 0
