"""The phases of a step with drafts: their kernels against plain torch, and drafts from a row's text against a search by hand."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from omni.device.cpu import CpuDevice
from omni_ar.kernels.ngram import kernel as ngram_kernel
from omni_ar.kernels.ngram import reference as ngram_reference
from omni_ar.kernels.sampling.state import EVERYTHING, Need
from omni_ar.kernels.step import draft_kernel, draft_reference
from omni_ar.kernels.step.draft_state import LEAST_RATE, RATE_ONE, DraftFields, DraftState
from omni_ar.kernels.step.handoff import NUM_TOKENS, handoff_width
from omni_ar.kernels.step.status import RowStatus
from tests.stages.omni_ar.kernels import test_step_kernels as steps
from tests.stages.omni_ar.kernels.test_step_kernels import BATCHES, BLOCK_SIZE, DEVICES, MAX_LENGTH, ROWS, VOCAB

DRAFTS = 3
RATES = (RATE_ONE, 3 * RATE_ONE // 4, LEAST_RATE, LEAST_RATE - 1)


class Bench(steps.Bench):
    """Rows with drafts of all numbers: 5, 6, 8, so that some match."""

    def __init__(
        self,
        device: str,
        adaptive: bool = True,
        always_runs: bool = True,
        costs: bool = False,
        places: int = ROWS + 1,
    ) -> None:
        """costs: whether drafts have costs, so that the number of active rows matters. places: maximum rows of a batch."""
        super().__init__(False, device)
        count = ROWS + 1
        fields = DraftFields(cap=DRAFTS, rate=0, proposed=0, offered=0, found=1)
        drafts = DraftState(
            text=torch.full((count, MAX_LENGTH + 1), -1, dtype=torch.int32),
            drafts=torch.tensor([[5, 6, 8]] * count),
            fields=torch.tensor([fields] * count),
            adaptive=adaptive,
            costs=RATE_ONE - torch.arange(count) * RATE_ONE // count if costs else None,
            always_runs=always_runs,
        )
        drafts.columns.rate.copy_(torch.tensor([RATES[row % 4] for row in range(count)]))
        drafts.columns.cap[2] = 0
        drafts.columns.found[4] = 0
        drafts.columns.proposed.copy_(torch.tensor([DRAFTS - row % 5 % 4 for row in range(count)]))
        drafts.columns.proposed[3], drafts.columns.proposed[ROWS] = -2, 0  # a plugin's drafter may be wrong
        handoff = CpuDevice().shared((3, places, handoff_width(1 + DRAFTS, True)), torch.int64)
        self.state = dataclasses.replace(self.state, drafts=drafts, handoff=handoff)
        self.there = steps.on_device(self.state, device)
        size = places * (1 + DRAFTS)
        axes = self.buffers.positions_slots_AT.shape[0]
        self.buffers = dataclasses.replace(
            self.buffers,
            ids_N=torch.zeros(size, dtype=torch.int64),
            lengths_N=torch.zeros(size, dtype=torch.int64),
            table_NM=torch.zeros(size, self.limits.max_blocks, dtype=torch.int64),
            positions_slots_AT=torch.zeros(axes, size, dtype=torch.int64),
        )
        self.buffers_there = steps.on_device(self.buffers, device)

    @property
    def drafts(self) -> tuple[DraftState, DraftState]:
        assert self.state.drafts is not None
        assert self.there.drafts is not None
        return self.state.drafts, self.there.drafts


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("adaptive", "costs"), [(False, False), (True, False), (True, True), (False, True)])
@pytest.mark.parametrize("positions", [1, 1 + DRAFTS])
def test_inputs_of_positions(device: str, batch: tuple[int, ...], adaptive: bool, costs: bool, positions: int):
    bench = Bench(device, adaptive, costs=costs)
    (rows_R, rows_there), count = bench.rows(*batch), len(batch) * positions
    arguments = (positions, BLOCK_SIZE)
    most = bench.limits.max_blocks
    draft_reference.prepare_drafts(bench.state, rows_R, *arguments, bench.buffers, most)
    draft_kernel.prepare_drafts(bench.there, rows_there, *arguments, bench.buffers_there, most)
    here, there = bench.buffers, bench.buffers_there
    for name, one, other in (
        ("ids", here.ids_N[:count], there.ids_N[:count]),
        ("lengths", here.lengths_N[:count], there.lengths_N[:count]),
        ("slots", here.slots_T[:count], there.slots_T[:count]),
        ("positions", here.positions_PT[:, :count], there.positions_PT[:, :count]),
    ):
        assert torch.equal(other.cpu(), one), name
    for place, length in enumerate(here.lengths_N[:count].tolist()):
        used = -(-length // BLOCK_SIZE)
        assert torch.equal(there.table_NM[place, :used].cpu(), here.table_NM[place, :used])
    bench.check()
    there.table_NM.fill_(-1)
    draft_kernel.prepare_drafts(bench.there, rows_there, *arguments, there, 1)
    assert there.table_NM[:, 1:].eq(-1).all(), "blocks beyond those of the batch"
    offered = bench.drafts[0].columns.offered.tolist()
    assert positions == 1 or len(batch) < ROWS or {0, 1} < set(offered)
    assert min(offered) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_the_first_position_has_the_blocks_of_drafts(device: str):
    """Attention reads its table for all positions of the row."""
    bench, row = Bench(device), torch.tensor([0])
    for state, drafts in zip((bench.state, bench.there), bench.drafts, strict=True):
        state.columns.length[0], state.columns.active[0] = BLOCK_SIZE - 1, 1
        state.columns.limit[0] = state.columns.outputs[0] + 9
        drafts.columns.cap[0] = drafts.columns.proposed[0] = DRAFTS
        drafts.columns.rate[0] = RATE_ONE
    there = bench.buffers_there
    draft_kernel.prepare_drafts(bench.there, row.to(device), 1 + DRAFTS, BLOCK_SIZE, there, bench.limits.max_blocks)
    assert there.lengths_N[: 1 + DRAFTS].tolist() == [BLOCK_SIZE + index for index in range(1 + DRAFTS)]
    assert torch.equal(there.table_NM[0, :2].cpu(), bench.state.block_table[0, :2])
    assert bench.state.block_table[0, :2].all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("active", [1, ROWS])
def test_positions_without_a_draft_repeat_the_token_if_drafts_have_costs(device: str, active: int):
    """So they choose the experts of the newest token. A draft that one row alone is not to verify is verified among more."""
    bench = Bench(device, costs=True)
    (rows_R, rows_there), most = bench.rows(*range(ROWS)), bench.limits.max_blocks
    for state, drafts in zip((bench.state, bench.there), bench.drafts, strict=True):
        state.columns.limit[:ROWS] = state.columns.outputs[:ROWS] + 9
        state.columns.active[:ROWS] = torch.arange(ROWS) < active
        drafts.columns.cap[:ROWS] = drafts.columns.proposed[:ROWS] = DRAFTS
        drafts.columns.rate[:ROWS] = 3 * RATE_ONE // 4
    draft_reference.prepare_drafts(bench.state, rows_R, 1 + DRAFTS, BLOCK_SIZE, bench.buffers, most)
    draft_kernel.prepare_drafts(bench.there, rows_there, 1 + DRAFTS, BLOCK_SIZE, bench.buffers_there, most)
    bench.check()
    offered = bench.drafts[0].columns.offered[:active].tolist()
    assert offered == [2 if active == 1 else DRAFTS] * active
    there, last = bench.buffers_there, bench.state.columns.last
    ids_RJ = there.ids_N[: ROWS * (1 + DRAFTS)].view(ROWS, -1).cpu()
    lengths_RJ = there.lengths_N[: ROWS * (1 + DRAFTS)].view(ROWS, -1).cpu()
    assert ids_RJ[0].tolist() == [int(last[0]), 5, 6, 8 if active > 1 else int(last[0])]
    assert lengths_RJ[0, -1] == lengths_RJ[0, 0] + (DRAFTS if active > 1 else 0)
    for index in range(active, ROWS):
        assert ids_RJ[index].eq(last[index]).all()
        assert lengths_RJ[index].eq(lengths_RJ[index, 0]).all()
    assert torch.equal(
        there.positions_PT[:, : ROWS * (1 + DRAFTS)].cpu(), bench.buffers.positions_PT[:, : ROWS * (1 + DRAFTS)]
    )


@pytest.mark.parametrize("device", DEVICES)
def test_active_rows_of_a_large_batch_are_counted(device: str):
    """In blocks of rows, of which the first have null rows only."""
    batch = [*[ROWS] * 150, *range(ROWS)]
    bench = Bench(device, costs=True, places=len(batch))
    (rows_R, rows_there), most = bench.rows(*batch), bench.limits.max_blocks
    draft_reference.prepare_drafts(bench.state, rows_R, 1 + DRAFTS, BLOCK_SIZE, bench.buffers, most)
    draft_kernel.prepare_drafts(bench.there, rows_there, 1 + DRAFTS, BLOCK_SIZE, bench.buffers_there, most)
    bench.check()
    assert set(bench.drafts[0].columns.offered.tolist()) >= {0, 1, 2}
    sampled_RJ = torch.tensor([5, 6, 8, 1]).repeat(len(batch), 1)
    sampled_RJ[rows_R == ROWS] = 0
    out_RW = torch.zeros(len(batch), handoff_width(1 + DRAFTS, True), dtype=torch.int64)
    out_there = out_RW.to(device)
    draft_reference.accept_drafts(bench.state, rows_R, sampled_RJ, out_RW)
    draft_kernel.accept_drafts(bench.there, rows_there, sampled_RJ.to(device), out_there)
    assert torch.equal(out_there.cpu(), out_RW)
    bench.check()


OUTSIDE: dict[tuple[int, ...], int] = {
    (-1, 6, 8): 0,
    (VOCAB, 6, 8): 0,
    (5, 2**40, 8): 1,
    (5, -(2**40), 8): 1,
    (5, 6, VOCAB): 2,
    (VOCAB - 1, 0, VOCAB - 1): 3,
}
"""Drafts, and how many there are before the first that is no id."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("positions", [1, 2, 1 + DRAFTS])
@pytest.mark.parametrize("proposed", [DRAFTS, 1])
def test_drafts_outside_the_vocabulary_are_no_drafts(device: str, positions: int, proposed: int):
    """Nor are those behind them. An embedding of theirs would be read out of bounds."""
    bench = Bench(device, adaptive=False)
    (rows_R, rows_there), most = bench.rows(*range(len(OUTSIDE))), bench.limits.max_blocks
    for state, drafts in zip((bench.state, bench.there), bench.drafts, strict=True):
        state.columns.limit[:ROWS] = state.columns.outputs[:ROWS] + 9
        state.columns.active[:ROWS] = 1
        drafts.columns.cap[:ROWS] = DRAFTS
        drafts.columns.proposed[:ROWS] = proposed
        drafts.drafts[: len(OUTSIDE)] = torch.tensor(list(OUTSIDE))
    draft_reference.prepare_drafts(bench.state, rows_R, positions, BLOCK_SIZE, bench.buffers, most)
    draft_kernel.prepare_drafts(bench.there, rows_there, positions, BLOCK_SIZE, bench.buffers_there, most)
    bench.check()
    count = len(OUTSIDE) * positions
    ids_N = bench.buffers_there.ids_N[:count].cpu()
    assert torch.equal(ids_N, bench.buffers.ids_N[:count])
    assert bool(((ids_N >= 0) & (ids_N < VOCAB)).all())
    offered = bench.drafts[0].columns.offered[: len(OUTSIDE)].tolist()
    assert offered == [min(known, proposed, positions - 1) for known in OUTSIDE.values()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("adaptive", "always_runs", "costs"),
    [(False, True, False), (True, True, False), (True, False, False), (True, True, True), (False, True, True)],
)
def test_tokens_that_are_accepted(device: str, batch: tuple[int, ...], adaptive: bool, always_runs: bool, costs: bool):
    bench = Bench(device, adaptive, always_runs, costs)
    rows_R, rows_there = bench.rows(*batch)
    most = bench.limits.max_blocks
    counts: list[int] = []
    for state in (bench.state, bench.there):
        state.columns.limit[:ROWS] += 6
    for step in range(6):  # which goes round the handoff's ring
        positions = 1 if step == 3 else 1 + DRAFTS
        for state, drafts in zip((bench.state, bench.there), bench.drafts, strict=True):
            drafts.columns.proposed[:ROWS] = 2 + step % 2 if always_runs or positions > 1 else 0
            drafts.columns.proposed[5] = step // 2  # none at first
            drafts.columns.rate[6] = LEAST_RATE - 1  # whether or not its first draft is right
            state.handoff.host.zero_()  # columns of positions that a step does not have keep their values
        buffers = (bench.buffers, bench.buffers_there)
        draft_reference.prepare_drafts(bench.state, rows_R, positions, BLOCK_SIZE, buffers[0], most)
        draft_kernel.prepare_drafts(bench.there, rows_there, positions, BLOCK_SIZE, buffers[1], most)
        # Some of the drafts, then others.
        sampled_RJ = torch.tensor([5, 6, 8, 1])[:positions].repeat(len(batch), 1)
        cut_R1 = torch.randint(0, 2 + DRAFTS, (len(batch), 1), generator=bench.generator)
        odd_RJ = torch.randint(-1, 9, sampled_RJ.shape, generator=bench.generator)
        sampled_RJ = sampled_RJ.where(torch.arange(positions) < cut_R1, odd_RJ)
        sampled_RJ[rows_R == ROWS] = 0
        out_RW = torch.zeros(len(batch), handoff_width(1 + DRAFTS, True), dtype=torch.int64)
        out_there, sampled_there = out_RW.to(device), sampled_RJ.to(device)
        draft_reference.accept_drafts(bench.state, rows_R, sampled_RJ, out_RW)
        draft_kernel.accept_drafts(bench.there, rows_there, sampled_there, out_there)
        assert torch.equal(out_there.cpu(), out_RW)
        bench.check()
        counts += out_RW[:, NUM_TOKENS].tolist()
        advance_R = torch.full_like(rows_R, 1 + step % 2)
        draft_reference.record_drafts(bench.state, rows_R, out_RW, positions, advance_R, EVERYTHING)
        draft_kernel.record_drafts(bench.there, rows_there, out_there, positions, advance_R.to(device))
        steps.keep_needed(bench.state, bench.there)
        for drafts in bench.drafts:
            drafts.text[:, -1] = -1  # absorbs what does not count
        bench.check()
    assert len(batch) < ROWS or {0, 1, 2, 3} <= set(counts)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_without_a_possible_id_counts_none(device: str):
    """Its token is -1. One place before a row's history is the last one of another row, and nothing before the first row's."""
    bench = Bench(device)
    rows_R, rows_there = bench.rows(1, 2)
    out_RW = torch.zeros(2, handoff_width(1 + DRAFTS, True), dtype=torch.int64)
    out_RW[:, NUM_TOKENS], out_RW[:, NUM_TOKENS + 1 :] = 2, -1
    before = bench.state.sampling.seen.clone(), bench.state.sampling.counts.clone()
    for state in (bench.state, bench.there):
        state.sampling.needs[:ROWS] |= Need.REPETITION | Need.COUNTS
    draft_reference.record_drafts(bench.state, rows_R, out_RW, 1 + DRAFTS, torch.ones_like(rows_R), EVERYTHING)
    draft_kernel.record_drafts(bench.there, rows_there, out_RW.to(device), 1 + DRAFTS, torch.ones_like(rows_there))
    ours, plain = bench.there.sampling, bench.state.sampling
    for kept, written, plainly in zip(before, (ours.seen, ours.counts), (plain.seen, plain.counts), strict=True):
        assert torch.equal(written.cpu(), kept)
        assert torch.equal(plainly[:, :VOCAB], kept[:, :VOCAB])  # its last column absorbs what does not count


@pytest.mark.parametrize("device", DEVICES)
def test_stop_ids_and_limits_within_a_run(device: str):
    """All drafts are right. Every second row has 6 among its stop ids, and the rows have 1 to 5 tokens left."""
    bench = Bench(device, adaptive=False)
    rows_R, rows_there = bench.rows(*range(ROWS))
    left = [1 + row % 5 for row in range(ROWS)]
    for state, drafts in zip((bench.state, bench.there), bench.drafts, strict=True):
        for row in range(ROWS):
            state.columns.limit[row] = state.columns.outputs[row] + left[row]
        state.sampling.stop_ids[1:ROWS:2, 0] = 6
        state.columns.active[:ROWS] = 1
        drafts.columns.proposed[:ROWS] = drafts.columns.offered[:ROWS] = DRAFTS
    sampled_RJ = torch.tensor([5, 6, 8, 1]).repeat(ROWS, 1)
    out_RW = torch.zeros(ROWS, handoff_width(1 + DRAFTS, True), dtype=torch.int64)
    out_there = out_RW.to(device)
    draft_reference.accept_drafts(bench.state, rows_R, sampled_RJ, out_RW)
    draft_kernel.accept_drafts(bench.there, rows_there, sampled_RJ.to(device), out_there)
    assert torch.equal(out_there.cpu(), out_RW)
    bench.check()
    for row, (status, count) in enumerate(out_RW[:, :2].tolist()):
        stops = row % 2 == 1 and left[row] > 1
        assert count == (2 if stops else min(left[row], 1 + DRAFTS))
        assert status == (RowStatus.STOPPED if stops else RowStatus.FULL if count == left[row] else RowStatus.RUNNING)


def search(text: Sequence[int], fewest: int, most: int, drafts: int) -> list[int]:
    """By definition."""
    for length in range(most, fewest - 1, -1):
        newest = list(text[len(text) - length :])
        for place in range(len(text) - 1, length - 1, -1):
            if len(text) > length and list(text[place - length : place]) == newest:
                found = list(text[place:])
                return [found[index % len(found)] for index in range(drafts)]
    return []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [30, 1500])
@pytest.mark.parametrize(("fewest", "most"), [(1, 1), (2, 3), (1, 4), (3, 3)])
def test_drafts_from_a_row_s_own_text(device: str, width: int, fewest: int, most: int):
    generator = torch.Generator().manual_seed(width + most)
    texts = torch.randint(0, 4, (9, width + 1), generator=generator, dtype=torch.int32)
    texts[4] = torch.randint(0, 10**6, texts[4].shape, generator=generator)
    texts[5] = 3
    texts[6, :8] = torch.tensor([1, 2, 3, 50, 0, 1, 2, 3])
    texts[8, :5] = torch.tensor([1, -1, 2, 0, 1])
    # The only place that matches is far from the end.
    texts[7] = 100 + torch.arange(width + 1)
    texts[7, :6], texts[7, width - 4 : width - 1] = torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([1, 2, 3])
    length_N = torch.tensor([0, 1, 2, width // 2, width - 1, width - 1, 7, width - 2, 4])
    rows_R = torch.tensor([8, 0, 3, 1, 2, 7, 5, 6, 4])
    results: list[tuple[Tensor, Tensor]] = []
    for module, where in ((ngram_reference, "cpu"), (ngram_kernel, device)):
        drafts_NK, fields = torch.zeros(9, 5, dtype=torch.int64, device=where), torch.zeros(9, 4, dtype=torch.int64)
        proposed_N = fields.to(where)[:, 2]
        given = (texts.to(where), rows_R.to(where), length_N.to(where), fewest, most, 40)
        module.propose_ngrams(*given, drafts_NK, proposed_N)
        results.append((drafts_NK.cpu(), proposed_N.cpu()))
    (expected, proposed), (there, proposed_there) = results
    assert torch.equal(proposed_there, proposed)
    for row in rows_R.tolist():
        found = search(texts[row, : int(length_N[row]) + 1].tolist(), fewest, most, 5)
        wrong = next((at for at, token in enumerate(found) if not 0 <= token < 40), len(found))
        count = int(proposed[row])
        assert count == wrong
        assert expected[row, :count].tolist() == there[row, :count].tolist() == found[:wrong]
    assert proposed[5] == 5
    assert proposed[7] == 3
    assert proposed[0] == 0
