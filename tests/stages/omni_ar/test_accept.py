"""`accept_tokens` and `post_update` with drafts: several ids of a row, of which some count.

The drafts are made up: nothing here proposes any yet. The reference walks through each row's ids one by one.
"""

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.device.cpu import CpuDevice
from omni.sampling import GREEDY, SamplingParams
from omni_ar.kernels.step import accept_tokens, post_update
from omni_ar.kernels.step.state import RowFields, RowState
from omni_ar.kernels.step.status import RowStatus
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.state import allocate_rows
from omni_ar.sampling.pack import flags_of, merge_flags
from tests.support.small_text import SmallText

DRAFTS = 3
VOCAB = 13
STOPS = (3, 7)
ROWS = 6
MODEL = SmallText(vocab=VOCAB)
PENALIZED = [SamplingParams(frequency_penalty=1.0, repetition_penalty=1.5).with_defaults(GREEDY)]


@dataclass
class Row:
    """A row as a book-keeper has it. limit: tokens it may have; drafted, accepted: of its steps, and how many ids counted."""

    limit: int
    length: int
    outputs: list[int] = field(default_factory=list)
    running: bool = True

    def step(self, ids: list[int], offered: int) -> tuple[RowStatus, int]:
        """Returns status and how many of the ids count."""
        if not self.running:
            return RowStatus.RUNNING, 0
        count, status = 0, RowStatus.RUNNING
        for token in ids[:offered]:
            self.outputs.append(token)
            count += 1
            if len(self.outputs) >= self.limit:
                status = RowStatus.FULL
            if token in STOPS:
                status = RowStatus.STOPPED
            if status.over:
                break
        self.running = not status.over
        self.length += count
        return status, count


def new_state(rows: list[Row]) -> RowState:
    limits = Limits.of("text", ArOptions(max_num_seqs=len(rows), max_model_len=64), MODEL.shape)
    state = allocate_rows(CpuDevice(), MODEL, limits, torch.float32)
    state.sampling.stop_ids.fill_(-1)
    state.sampling.stop_ids[:, : len(STOPS)] = torch.tensor(STOPS)
    for index, row in enumerate(rows):
        state.columns.length[index] = row.length
        state.columns.limit[index] = row.limit
        state.columns.active[index] = 1
    return state


@given(
    limits=st.lists(st.integers(1, 12), min_size=ROWS, max_size=ROWS),
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 6),
)
def test_drafts_are_accepted_as_one_by_one(limits: list[int], seed: int, steps: int):
    rows = [Row(limit, length=5) for limit in limits]
    state = new_state(rows)
    handoff = CpuDevice().shared((3, ROWS, 2 + 1 + DRAFTS), torch.int64)
    state = dataclasses.replace(state, handoff=handoff)
    random = np.random.default_rng(seed)
    for step in range(steps):
        batch = random.permutation(ROWS)[: random.integers(1, ROWS + 1)]
        ids = random.integers(0, VOCAB, (len(batch), 1 + DRAFTS))
        offered = random.integers(1, 2 + DRAFTS, len(batch))
        out_RW = torch.zeros(len(batch), 2 + 1 + DRAFTS, dtype=torch.int64)
        out_RW[:, 2:] = torch.from_numpy(ids)
        rows_R = torch.from_numpy(batch)
        accept_tokens(state, rows_R, out_RW, torch.from_numpy(offered))
        # The forward ran the row's newest token and all drafts.
        ran_R = torch.full_like(rows_R, 1 + DRAFTS)
        post_update(state, rows_R, out_RW, ran_R, DRAFTS, merge_flags(map(flags_of, PENALIZED)))
        assert torch.equal(handoff.host[step % 3, : len(batch)], out_RW)
        for place, index in enumerate(batch.tolist()):
            row = rows[index]
            status, count = row.step(ids[place].tolist(), int(offered[place]))
            assert int(out_RW[place, 1]) == count
            assert not count or int(out_RW[place, 0]) == status
    for index, row in enumerate(rows):
        fields = RowFields(*state.fields[index].tolist())
        assert (fields.length, fields.outputs, bool(fields.active)) == (row.length, len(row.outputs), row.running)
        assert not row.outputs or not row.running or fields.last == row.outputs[-1]
        assert state.sampling.counts[index, :VOCAB].tolist() == [row.outputs.count(i) for i in range(VOCAB)]
        assert state.sampling.seen[index, :VOCAB].tolist() == [i in row.outputs for i in range(VOCAB)]


@pytest.mark.parametrize(
    ("ids", "status"), [([5], RowStatus.RUNNING), ([3], RowStatus.STOPPED), ([-1], RowStatus.STOPPED)]
)
def test_one_id(ids: list[int], status: int):
    state = new_state([Row(limit=9, length=5)])
    out_RW = torch.tensor([[9, 9, *ids]])
    accept_tokens(state, torch.tensor([0]), out_RW)
    assert out_RW.tolist() == [[status, 1, *ids]]
    fields = RowFields(*state.fields[0].tolist())
    assert (fields.last, fields.outputs, bool(fields.active)) == (max(ids[0], 0), 1, status == RowStatus.RUNNING)
