"""Drafts that a step accepts: several ids of a row, some of which count. The reference goes through each row's ids one by one."""

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.device.cpu import CpuDevice
from omni.sampling import GREEDY, SamplingParams
from omni_ar.kernels.step import accept_tokens
from omni_ar.kernels.step.draft_state import DraftFields
from omni_ar.kernels.step.drafts import accept_drafts, record_drafts
from omni_ar.kernels.step.handoff import IDS, NUM_TOKENS, STATUS, VERIFIED, handoff_width
from omni_ar.kernels.step.state import RowFields, RowState
from omni_ar.kernels.step.status import RowStatus
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.state import allocate_rows
from omni_ar.sampling.pack import flags_of, merge_flags
from tests.support.small_text import SmallText

DRAFTS = 3
WIDTH = handoff_width(1 + DRAFTS, reports_drafts=True)
VOCAB = 13
STOPS = (3, 7)
ROWS = 6
MODEL = SmallText(vocab=VOCAB)
PENALIZED = [SamplingParams(frequency_penalty=1.0, repetition_penalty=1.5).with_defaults(GREEDY)]


@dataclass
class Row:
    """A row as a book-keeper has it. limit: tokens it may have."""

    limit: int
    length: int
    outputs: list[int] = field(default_factory=list)
    running: bool = True

    def step(self, ids: list[int], drafts: list[int]) -> tuple[RowStatus, int]:
        """Returns status and how many of the ids count. drafts: those that are verified."""
        if not self.running:
            return RowStatus.RUNNING, 0
        count, status = 0, RowStatus.RUNNING
        for token, draft in zip(ids, [*drafts, None], strict=False):
            self.outputs.append(token)
            count += 1
            if len(self.outputs) >= self.limit:
                status = RowStatus.FULL
            if token in STOPS:
                status = RowStatus.STOPPED
            if status.finished or token != draft:
                break
        self.running = not status.finished
        self.length += count
        return status, count


def new_state(rows: list[Row], drafter: str | None = "ngram") -> RowState:
    options = ArOptions(max_num_seqs=len(rows), max_model_len=64, drafter=drafter, draft_tokens=DRAFTS)
    state = allocate_rows(CpuDevice(), MODEL, Limits.of("text", options, MODEL.shape), torch.float32)
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
    handoff = CpuDevice().shared((3, ROWS, WIDTH), torch.int64)
    state = dataclasses.replace(state, handoff=handoff)
    drafts = state.drafts
    assert drafts is not None
    random = np.random.default_rng(seed)
    for step in range(steps):
        batch = random.permutation(ROWS)[: random.integers(1, ROWS + 1)]
        positions = int(random.choice([1, 1 + DRAFTS]))
        ids = random.integers(0, VOCAB, (len(batch), positions))
        offered = random.integers(0, positions, len(batch))
        rows_R = torch.from_numpy(batch)
        # Most drafts are the ids.
        drafted = np.where(random.random(ids.shape) < 0.8, ids, random.integers(0, VOCAB, ids.shape))[:, :DRAFTS]
        drafts.drafts[rows_R, : drafted.shape[1]] = torch.from_numpy(drafted)
        drafts.columns.proposed[rows_R] = drafts.columns.offered[rows_R] = torch.from_numpy(offered)
        out_RW = torch.zeros(len(batch), WIDTH, dtype=torch.int64)
        accept_drafts(state, rows_R, torch.from_numpy(ids), out_RW)
        newest_R = torch.ones_like(rows_R)
        record_drafts(state, rows_R, out_RW, positions, newest_R, merge_flags(map(flags_of, PENALIZED)))
        assert torch.equal(handoff.host[step % 3, : len(batch)], out_RW)
        for place, index in enumerate(batch.tolist()):
            row = rows[index]
            status, count = row.step(ids[place].tolist(), drafted[place, : offered[place]].tolist())
            assert int(out_RW[place, NUM_TOKENS]) == count
            assert out_RW[place, IDS : IDS + positions].tolist() == ids[place].tolist()
            assert int(out_RW[place, VERIFIED]) == offered[place]
            assert not count or int(out_RW[place, STATUS]) == status
            assert DraftFields(*drafts.fields[index].tolist())[2:4] == (0, 0)
    for index, row in enumerate(rows):
        fields = RowFields(*state.fields[index].tolist())
        assert (fields.length, fields.outputs, bool(fields.active)) == (row.length, len(row.outputs), row.running)
        assert not row.outputs or not row.running or fields.last == row.outputs[-1]
        assert state.sampling.counts[index, :VOCAB].tolist() == [row.outputs.count(i) for i in range(VOCAB)]
        assert state.sampling.seen[index, :VOCAB].tolist() == [i in row.outputs for i in range(VOCAB)]
        # The newest token of the row, at 5, was there before; the accepted ones follow.
        assert drafts.text[index, 6 : 6 + len(row.outputs)].tolist() == row.outputs


@pytest.mark.parametrize(
    ("ids", "status"), [([5], RowStatus.RUNNING), ([3], RowStatus.STOPPED), ([-1], RowStatus.STOPPED)]
)
def test_one_id_ends_a_row_by_stop_or_limit(ids: list[int], status: int):
    state = new_state([Row(limit=9, length=5)], drafter=None)
    out_RW = torch.tensor([[9, 9, *ids]])
    accept_tokens(state, torch.tensor([0]), out_RW)
    assert out_RW.tolist() == [[status, 1, *ids]]
    fields = RowFields(*state.fields[0].tolist())
    assert (fields.last, fields.outputs, bool(fields.active)) == (max(ids[0], 0), 1, status == RowStatus.RUNNING)
