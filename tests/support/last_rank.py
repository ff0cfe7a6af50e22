"""Rank 1: has the rows' sampling state and nothing else of them, samples what rank 0 sends, and broadcasts the tokens.

python -m support.last_rank STORE
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omni.device.cpu import CpuDevice
from omni_ar.kernels.step.state import RowState, StepBuffers
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.phases import accept_tokens, compute_logits, post_update, sample_rows, start_rows
from omni_ar.run.state import allocate_rows, allocate_step_buffers
from omni_ar.sampling import SamplingFlags
from omni_ar.sampling.edits import EditParts
from omni_ar.sampling.start import StartParts
from support.small_text import SmallText
from support.two_ranks import Ranks


@dataclass(frozen=True)
class Sampler:
    """The last rank's part of one stage."""

    model: SmallText
    limits: Limits
    state: RowState
    buffers: StepBuffers
    broadcasts: Tensor

    @classmethod
    def of(cls, vocab: int, options: dict[str, int]) -> "Sampler":
        model, device = SmallText(vocab), CpuDevice()
        limits = Limits.of("text", ArOptions(**options), model.shape)
        state = allocate_rows(device, model, limits, torch.float32)
        broadcasts = device.zeros((limits.rows, 3 + limits.step_ids), torch.int64)
        return cls(model, limits, state, allocate_step_buffers(device, model, limits, torch.float32), broadcasts)

    def start(self, rows_n: Tensor, fields_nC: Tensor, sampling: Sequence[Tensor]) -> None:
        table_nM = torch.zeros(len(rows_n), self.limits.max_blocks, dtype=torch.int64)
        start_rows(self.state, rows_n, fields_nC, table_nM, StartParts(*sampling))

    def step(
        self,
        rows_R: Tensor,
        generations_R: Tensor,
        advance_R: Tensor,
        hidden_RD: Tensor,
        flags: dict[str, Any],
        edits: Sequence[Tensor] | None,
    ) -> Tensor:
        """Status, count, ids and generation of each row, `[R, 3 + K]`."""
        count, state = len(rows_R), self.state
        logits_RV, out_RW = self.buffers.logits_NV[:count], self.broadcasts[:count]
        accepted_RW = self.buffers.accepted_NW[:count]
        needs = SamplingFlags(**flags | {"processors": frozenset(flags["processors"])})
        steered = None if edits is None else EditParts(*edits)
        assert torch.equal(state.columns.generation[rows_R], generations_R), "rows are set up before they are sampled"
        compute_logits(self.model, hidden_RD, logits_RV)
        sample_rows(state, logits_RV, rows_R, needs, steered, (), accepted_RW[:, 2])
        accept_tokens(state, rows_R, accepted_RW)
        post_update(state, rows_R, accepted_RW, advance_R, self.limits.step_ids - 1, needs)
        out_RW[:, :-1] = accepted_RW
        out_RW[:, -1] = generations_R
        return out_RW


def serve(ranks: Ranks) -> None:
    """Until an empty message comes. One that opens a stage ends the one before."""
    sampler: Sampler | None = None
    while message := ranks.receive():
        content: Any = message
        match content.pop("kind"):
            case "open":
                sampler = Sampler.of(**content)
            case "start" if sampler is not None:
                sampler.start(**content)
            case "step" if sampler is not None:
                ranks.broadcast(sampler.step(**content)).wait()
            case kind:
                raise ValueError(f"a message of kind {kind!r} before a stage is open")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        serve(Ranks(Path(sys.argv[1]), 1))
