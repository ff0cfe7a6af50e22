"""The small phases of a step: what their kernels leave in the state, against the phases in plain torch."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from omni.device import SharedMemory, open_device
from omni.device.cpu import CpuDevice
from omni_ar.kernels.sampling.state import EVERYTHING, Need
from omni_ar.kernels.step import kernel, reference
from omni_ar.kernels.step.handoff import NUM_TOKENS, STATUS
from omni_ar.kernels.step.state import RowFields, RowState
from omni_ar.kernels.step.status import RowStatus
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.state import allocate_rows, allocate_step_buffers
from tests.support.sampler_bench import state_of
from tests.support.small_codec import SmallCodec
from tests.support.small_text import SmallText

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROWS, VOCAB, BLOCK_SIZE, MAX_LENGTH = 9, 37, 4, 24
BLOCKS = 1 + ROWS * MAX_LENGTH // BLOCK_SIZE
STOPS = (3, 7)
LENGTHS = (0, 1, 3, 4, 5, 8, 22, 23, 24)
"""A row of the last length is full."""

ASKED: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.5},
    {"frequency_penalty": 0.5},
    {"bad_words_ids": ((1, 2), (4,))},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5, "bad_words_ids": ((5, 6),)},
]


class Bench:
    """A stage's state with rows of all kinds, the null row last, and the same on a device."""

    def __init__(self, codec: bool, device: str) -> None:
        self.model = SmallCodec(codes=VOCAB) if codec else SmallText(vocab=VOCAB)
        options = ArOptions(max_num_seqs=ROWS, max_model_len=MAX_LENGTH, block_size=BLOCK_SIZE)
        self.limits = Limits.of("text", options, self.model.shape)
        self.generator = torch.Generator().manual_seed(3)
        self.state = self._state()
        self.buffers = allocate_step_buffers(CpuDevice(), self.model, self.limits, torch.float32)
        self.there = on_device(self.state, device)
        self.buffers_there = on_device(self.buffers, device)
        self.device = device

    def _state(self) -> RowState:
        state = allocate_rows(CpuDevice(), self.model, self.limits, torch.float32)
        for row, length in enumerate(LENGTHS):
            outputs = row % 4
            runs = length < MAX_LENGTH and row != 4
            fields = RowFields(row, length, row - 3, outputs, outputs + 1 + row % 3, runs, row=row, counted=runs)
            state.fields[row] = torch.tensor(fields)
        # No two rows write to the same block: the order of writes would be arbitrary.
        state.block_table[:ROWS] = 1 + torch.randperm(BLOCKS - 1, generator=self.generator).view(ROWS, -1)
        state.next_codes.copy_(torch.randn(state.next_codes.shape, generator=self.generator))
        sampling = state_of(VOCAB, [{**ASKED[row % 5], "stop_token_ids": STOPS} for row in range(ROWS)], (1, 2, 3))
        for name in ("needs", "stop_ids", "min_tokens", "seen", "counts", "recent"):
            getattr(state.sampling, name)[:ROWS] = getattr(sampling, name)
        return state

    def both(self, phase: str, *arguments: Any, only_reference: tuple[Any, ...] = ()) -> None:
        """Runs a phase's reference on the state here, and its kernel on that on the device."""
        getattr(reference, phase)(self.state, *arguments, *only_reference)
        there = (value.to(self.device) if isinstance(value, Tensor) else value for value in arguments)
        getattr(kernel, phase)(self.there, *there)

    def rows(self, *rows: int) -> tuple[Tensor, Tensor]:
        here = torch.tensor(rows)
        return here, here.to(self.device)

    def check(self) -> None:
        """Except for the null row, which no request owns."""
        if self.device != "cpu":
            torch.cuda.synchronize()  # results in host memory are read without a copy
        for (name, here), (_, there) in zip(tensors(self.state), tensors(self.there), strict=True):
            if name not in ("counter", "handoff"):
                here, there = here[:ROWS], there[:ROWS]
            if name.endswith(("seen", "counts")):
                here, there = here[:, :VOCAB], there[:, :VOCAB]
            assert torch.equal(there.cpu(), here), name


def tensors(of: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    found = []
    for field in dataclasses.fields(of):
        value = getattr(of, field.name)
        if isinstance(value, Tensor):
            found.append((prefix + field.name, value))
        elif isinstance(value, SharedMemory):
            found.append((prefix + field.name, value.host))
        elif dataclasses.is_dataclass(value):
            found += tensors(value, f"{field.name}.")
    return found


def on_device(of: Any, device: str) -> Any:
    copies: dict[str, Any] = {}
    for field in dataclasses.fields(of):
        value = getattr(of, field.name)
        if isinstance(value, Tensor):
            copies[field.name] = value.clone().to(device)
        elif isinstance(value, SharedMemory):
            copies[field.name] = open_device(device).shared(tuple(value.host.shape), value.host.dtype)
            copies[field.name].host.copy_(value.host)
        elif dataclasses.is_dataclass(value):
            copies[field.name] = on_device(value, device)
    return dataclasses.replace(of, **copies)


BATCHES = [(0,), (6, 2, 8, 4, 1, 0, 7, 5, 3), (3, 1, ROWS, ROWS)]
"""The last is padded with null rows."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("codec", [False, True])
def test_inputs_of_decode_rows(device: str, batch: tuple[int, ...], codec: bool):
    bench = Bench(codec, device)
    (rows_R, rows_there), count = bench.rows(*batch), len(batch)
    # The reference looks for the block of a row whose table is full and that is over.
    bench.state.columns.length[8] = bench.there.columns.length[8] = 23 if 8 in batch else 24
    reference.prepare_decodes(bench.state, rows_R, BLOCK_SIZE, bench.buffers, bench.limits.max_blocks)
    kernel.prepare_decodes(bench.there, rows_there, BLOCK_SIZE, bench.buffers_there, bench.limits.max_blocks)
    here, there = bench.buffers, bench.buffers_there
    for name, one, other in (
        ("ids", here.ids_N[:count], there.ids_N[:count]),
        ("lengths", here.lengths_N[:count], there.lengths_N[:count]),
        ("slots", here.slots_T[:count], there.slots_T[:count]),
        ("positions", here.positions_PT[:, :count], there.positions_PT[:, :count]),
        ("codes", here.codes_ND[:count], there.codes_ND[:count]),
    ):
        assert torch.equal(other.cpu(), one), name
    for place, length in enumerate(here.lengths_N[:count].tolist()):
        used = -(-length // BLOCK_SIZE)
        assert torch.equal(there.table_NM[place, :used].cpu(), here.table_NM[place, :used])
    bench.check()


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_over_and_fills_its_table_writes_to_the_null_block(device: str):
    bench = Bench(False, device)
    kernel.prepare_decodes(bench.there, bench.rows(8)[1], BLOCK_SIZE, bench.buffers_there, bench.limits.max_blocks)
    assert bench.buffers_there.slots_T[0] == 0
    assert bench.buffers_there.lengths_N[0] == 24
    assert torch.equal(bench.buffers_there.table_NM[0].cpu(), bench.state.block_table[8])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
def test_tokens_and_their_counts(device: str, batch: tuple[int, ...]):
    bench = Bench(False, device)
    rows_R, rows_there = bench.rows(*batch)
    for step in range(5):  # which goes round the handoff's ring
        ids_R = torch.randint(-1, 9, rows_R.shape, generator=bench.generator)
        ids_R[rows_R == ROWS] = 0
        out_RW = torch.stack([torch.full_like(ids_R, 99), torch.full_like(ids_R, 99), ids_R], 1)
        out_there = out_RW.to(bench.device)
        reference.accept_tokens(bench.state, rows_R, out_RW)
        kernel.accept_tokens(bench.there, rows_there, out_there)
        assert torch.equal(out_there.cpu(), out_RW)
        bench.check()
        advance_R = torch.full_like(ids_R, 1 + step % 2)
        bench.both("post_update", rows_R, out_RW, advance_R, only_reference=(EVERYTHING,))
        # A kernel keeps only the state that its row needs.
        keep_needed(bench.state, bench.there)
        bench.check()


def keep_needed(here: RowState, there: RowState) -> None:
    for row in range(ROWS):
        asked = ASKED[row % 5]
        for name, wanted in (
            ("seen", "repetition_penalty" in asked),
            ("counts", bool(asked.keys() & {"frequency_penalty", "presence_penalty"})),
            ("recent", any(len(word) > 1 for word in asked.get("bad_words_ids", ()))),
        ):
            if not wanted:
                getattr(here.sampling, name)[row] = getattr(there.sampling, name)[row].cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
def test_frames_have_the_inputs_of_the_reference(device: str, batch: tuple[int, ...]):
    bench = Bench(True, device)
    rows_R, rows_there = bench.rows(*batch)
    bench.state.columns.length[8] = bench.there.columns.length[8] = 23
    for one, other in zip(
        reference.frame_inputs(bench.state, rows_R), kernel.frame_inputs(bench.there, rows_there), strict=True
    ):
        assert torch.equal(other.cpu(), one)
    groups, width = 3, bench.state.next_codes.shape[1]
    codes_RG = torch.randint(0, VOCAB, (len(batch), groups), generator=bench.generator)
    next_RD = torch.randn(len(batch), width, generator=bench.generator)
    pages = torch.zeros(BLOCKS, BLOCK_SIZE, groups, dtype=torch.int64)
    pages_there = pages.to(bench.device)
    reference.place_frames(bench.state, rows_R, codes_RG, next_RD, BLOCK_SIZE, pages)
    kernel.place_frames(
        bench.there, rows_there, codes_RG.to(bench.device), next_RD.to(bench.device), BLOCK_SIZE, pages_there
    )
    # No request owns the null block.
    assert torch.equal(pages_there[1:].cpu(), pages[1:])
    assert bool(pages[1:].any()) == any(row not in (4, 8, ROWS) for row in batch)
    bench.check()


@pytest.mark.parametrize("device", DEVICES)
def test_the_last_frame_of_a_row_has_a_slot_and_later_frames_have_none(device: str):
    bench = Bench(True, device)
    rows_R, rows_there = bench.rows(0)  # of which one token is left
    pages = torch.zeros(BLOCKS, BLOCK_SIZE, 3, dtype=torch.int64)
    pages_there, next_RD = pages.to(bench.device), torch.zeros(1, bench.state.next_codes.shape[1])
    for step, status in enumerate((RowStatus.FULL, None)):
        out_RW = torch.tensor([[0, 0, 11]])
        out_there, codes_RG = out_RW.to(bench.device), torch.full((1, 3), 20 + step)
        reference.accept_tokens(bench.state, rows_R, out_RW)
        kernel.accept_tokens(bench.there, rows_there, out_there)
        assert status is None or out_RW[0, 0] == status
        reference.place_frames(bench.state, rows_R, codes_RG, next_RD, BLOCK_SIZE, pages)
        there = (codes_RG.to(bench.device), next_RD.to(bench.device), BLOCK_SIZE, pages_there)
        kernel.place_frames(bench.there, rows_there, *there)
        assert torch.equal(pages_there.cpu(), pages)
        assert pages[1:].unique().tolist() == [0, 20]
        bench.check()


@pytest.mark.parametrize("device", DEVICES)
def test_before_the_first_turn_the_newest_slot_is_the_last(device: str):
    """Where the counter is when graphs are captured."""
    bench = Bench(True, device)
    rows_R, _ = bench.rows(1, 2)
    bench.both("end_frames", rows_R, torch.full((2, 3), END), END, 3)
    assert bench.state.handoff.host[-1, :2, STATUS].tolist() == [RowStatus.STOPPED] * 2
    bench.check()


END = 9
FRAMES = [
    (END, END, END),
    (END, END, 4),
    (END, 4, END),
    (4, END, END),
    (1, 2, 3),
]


def reported(status: int, frame: tuple[int, ...], groups: int, early: bool, endless: bool) -> int:
    """The status that the host is to read of a row that has a token."""
    if status != RowStatus.STOPPED and not early and not endless and frame[:groups] == (END,) * groups:
        return RowStatus.STOPPED if frame == (END,) * 3 else RowStatus.STOPPED_WITH_FRAME
    return RowStatus.FULL_WITH_FRAME if status == RowStatus.FULL else status


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_frames_that_end_a_request(device: str, groups: int):
    seen = set()
    for batch in [(6, 2, 8, 4, 1, 0, 7, 5, 3), (3, 1, ROWS, ROWS)]:
        for shift, early, endless in [(n, False, False) for n in range(5)] + [(0, True, False), (0, False, True)]:
            bench = Bench(True, device)
            rows_R, rows_there = bench.rows(*batch)
            for state in (bench.state, bench.there):
                state.sampling.min_tokens.fill_(4 if early else 0)
                state.sampling.needs.bitwise_or_(Need.ENDLESS if endless else 0)
            out_RW = torch.tensor([[0, 0, STOPS[0] if row == 5 else 11] for row in batch])
            codes_RG = torch.tensor([FRAMES[(row + shift) % 5] for row in batch])
            reference.accept_tokens(bench.state, rows_R, out_RW)
            kernel.accept_tokens(bench.there, rows_there, out_RW.to(bench.device))
            bench.both("end_frames", rows_R, codes_RG, END, groups)
            bench.check()
            for place, row in enumerate(batch):
                fields = RowFields(*bench.state.fields[row].tolist())
                columns = bench.state.handoff.host[0, place].tolist()
                status, count = columns[STATUS], columns[NUM_TOKENS]
                if count:
                    before = int(out_RW[place, STATUS])
                    frame = FRAMES[(row + shift) % 5]
                    assert status == reported(before, frame, groups, early and fields.outputs <= 4, endless)
                    seen.add((before, status))
                assert bool(fields.active) == bool(count and status == RowStatus.RUNNING)
    assert seen >= {
        (RowStatus.RUNNING, RowStatus.RUNNING),
        (RowStatus.RUNNING, RowStatus.STOPPED),
        (RowStatus.STOPPED, RowStatus.STOPPED),
        (RowStatus.FULL, RowStatus.FULL_WITH_FRAME),
        (RowStatus.FULL, RowStatus.STOPPED),
    }
    assert ((RowStatus.RUNNING, RowStatus.STOPPED_WITH_FRAME) in seen) == (groups < 3)
