"""Copies of payload rows, against a brute-force reference, on a device that is late and checks the order of accesses."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.device import COMPLETED, Event, PhaseCategory, category_of
from omni.payload import PageSlice
from omni.payload.copier import Source
from omni.stage import PayloadCopier, Transfer, as_matrix
from omni.testing.faults import FaultyStirredDevice, PlantedError, write_over
from omni.testing.simulation.late import QueuedDevice

WIDTH, BLOCKS, BLOCK = 6, 4, 5
CAPACITY = 4000
DTYPES = [torch.float32, torch.bfloat16, torch.int64]
KINDS = ["scattered pages", "following pages", "device tensor", "host tensor", "known values"]


@dataclass
class Case:
    """Transfers, and the values that each destination has afterwards."""

    transfers: list[Transfer]
    wanted: list[tuple[Tensor, Tensor]]

    @property
    def slices(self) -> list[PageSlice]:
        return [t.source for t in self.transfers if isinstance(t.source, PageSlice)]

    def group(self, number: int) -> list[Transfer]:
        """The transfers of a copy of the first kind: from the same pages to places in the same memory."""
        groups: dict[object, list[Transfer]] = {}
        for t in self.transfers:
            if isinstance(t.source, PageSlice):
                alone = t.destinations is None
                groups.setdefault(id(t) if alone else (id(t.source.pages), id(t.into)), []).append(t)
        return list(groups.values())[number]

    def expect(self, but: Sequence[Transfer] = ()) -> None:
        unknown = {id(transfer.into) for transfer in but}
        for into, values in self.wanted:
            assert id(into) in unknown or torch.equal(into, values)


def numbers(chance: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.from_numpy(chance.integers(0, 100, shape)).to(dtype)


def make_case(device: QueuedDevice | FaultyStirredDevice, seed: int, count: int = 12) -> Case:
    """Sources of every kind, to places in two buffers and to memory that they fill."""
    chance = np.random.default_rng(seed)
    pages = [numbers(chance, (BLOCKS, BLOCK, WIDTH), dtype) for dtype in DTYPES]
    buffers = [device.zeros((200, WIDTH), dtype) for dtype in (torch.float32, torch.int64)]
    free = [chance.permutation(200) for _ in buffers]
    case = Case([], [(buffer, torch.zeros_like(buffer)) for buffer in buffers])
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        source, values_nW = make_source(kind, chance, pages)
        first, end = sorted(chance.integers(0, len(values_nW) + 1, 2).tolist())
        which = 1 if kind == "known values" else int(chance.integers(2))
        if kind == "known values" or chance.random() < 0.5:
            places, free[which] = free[which][: end - first], free[which][end - first :]
            into, wanted_nW = case.wanted[which]
            wanted_nW[torch.from_numpy(places)] = values_nW[first:end].to(into.dtype)
            case.transfers.append(Transfer(source, into, places, slice(first, end)))
            continue
        left, right = sorted(chance.choice(WIDTH + 1, 2, replace=False).tolist())
        into = device.zeros((end - first, right - left), DTYPES[int(chance.integers(3))])
        case.transfers.append(Transfer(source, into, None, slice(first, end), slice(left, right)))
        case.wanted.append((into, values_nW[first:end, left:right].to(into.dtype)))
    return case


def make_source(
    kind: str, chance: np.random.Generator, pages: Sequence[Tensor]
) -> tuple[PageSlice | Tensor | np.ndarray, Tensor]:
    """And its rows."""
    chosen, count = pages[int(chance.integers(len(pages)))], int(chance.integers(1, 7))
    match kind:
        case "scattered pages":
            slots = chance.integers(0, BLOCKS * BLOCK, count)
        case "following pages":
            slots = np.arange(count) + chance.integers(0, BLOCKS * BLOCK - count)
        case "device tensor":
            whole = numbers(chance, (3, 2, count), torch.bfloat16).permute(2, 0, 1)  # not contiguous
            return whole, whole.reshape(count, WIDTH).clone()
        case "host tensor":
            rows_nW = numbers(chance, (count, WIDTH), torch.float32)
            return rows_nW, rows_nW.clone()
        case _:
            values = chance.integers(0, 100, (count, WIDTH))
            return values, torch.from_numpy(values.copy())
    return PageSlice(chosen, slots), chosen.flatten(0, 1)[torch.from_numpy(slots)].clone()


@pytest.mark.parametrize("seed", range(40))
def test_every_row_comes_to_its_place_and_nothing_waits(seed: int):
    device = QueuedDevice()
    case = make_case(device, seed, count=1 + seed)
    with torch.inference_mode():
        copier = PayloadCopier(device, device.stream("stage"), CAPACITY)
        device.synchronize()
        result = copier.copy(case.transfers)
        result.check()
        assert not result.end.done()
        assert not any(part.reader.done() for part in case.slices)
        device.run()
    assert result.end.done()
    assert all(part.reader.done() for part in case.slices)
    case.expect()
    device.assert_no_races()


def test_transfers_of_one_source_share_a_copy_and_all_share_an_upload():
    device = QueuedDevice()
    pages, other = (torch.zeros(BLOCKS, BLOCK, WIDTH) for _ in range(2))
    into, tensor = torch.zeros(50, WIDTH), torch.zeros(2, WIDTH)
    places = iter(np.arange(50).reshape(-1, 2))
    sources: list[Source] = [
        *(PageSlice(each, np.array(slots)) for each in (pages, other, pages) for slots in ([3, 1], [7, 8])),
        *(np.zeros((2, WIDTH), np.int64) for _ in range(3)),
        *(tensor, tensor),
    ]
    copier = PayloadCopier(device, device.stream("stage"), CAPACITY)
    copier.copy([Transfer(source, into, next(places)) for source in sources])
    device.run()
    assert Counter(device.streams[0].ran) == {"copy_upload": 1, "gather_rows": 2, "copy_rows": 3}


def test_consecutive_rows_need_no_upload_and_no_transfers_need_nothing():
    device = QueuedDevice()
    copier = PayloadCopier(device, device.stream("stage"), CAPACITY)
    assert copier.copy([]).end is COMPLETED
    pages, out = torch.randn(BLOCKS, BLOCK, WIDTH), torch.zeros(3, 2)
    copier.copy([Transfer(PageSlice(pages, np.arange(4, 9)), out, rows=slice(1, 4), columns=slice(2, 4))])
    device.run()
    assert device.streams[0].ran == ["gather_rows"]
    assert torch.equal(out, pages.flatten(0, 1)[5:8, 2:4])


@pytest.mark.parametrize("to", [[7], [7, 8, 9], [9, 7, 8]])
@pytest.mark.parametrize("paged", [True, False])
def test_consecutive_rows_to_consecutive_rows_need_no_upload(to: list[int], paged: bool):
    device = QueuedDevice()
    copier = PayloadCopier(device, device.stream("stage"), CAPACITY)
    rows_nW, into = torch.randn(BLOCKS * BLOCK, WIDTH), torch.zeros(20, WIDTH)
    source = PageSlice(rows_nW.view(BLOCKS, BLOCK, WIDTH), np.arange(4, 4 + len(to))) if paged else rows_nW[4:]
    copier.copy([Transfer(source, into, np.array(to), slice(0, len(to)))])
    device.run()
    consecutive = to == sorted(to)
    uploads = [] if consecutive else ["copy_upload"]
    assert device.streams[0].ran == [*uploads, "gather_rows" if paged else "copy_rows"]
    wanted = torch.zeros(20, WIDTH)
    wanted[to] = rows_nW[4 : 4 + len(to)]
    assert torch.equal(into, wanted)


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("seed", range(4))
def test_a_launch_that_fails_fails_its_group_and_the_end_is_reported(seed: int, number: int, after: bool):
    device = FaultyStirredDevice(None)
    case = make_case(device, seed, count=25)
    with torch.inference_mode():
        copier = PayloadCopier(device, device.stream("stage"), CAPACITY)
        device.synchronize()
        device.fail("gather_rows", number, after=after)
        result = copier.copy(case.transfers)
        assert list(result.failed) == case.group(number)
        with pytest.raises(PlantedError, match="planted"):
            result.check()
        assert not any(part.reader.done() for part in case.slices)
        device.run()
    assert all(part.reader.done() for part in case.slices)
    case.expect(but=list(result.failed))
    device.assert_no_races()


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
def test_an_upload_that_fails_fails_all_and_copies_nothing(after: bool):
    device = FaultyStirredDevice(None)
    case = make_case(device, 1)
    with torch.inference_mode():
        copier = PayloadCopier(device, device.stream("stage"), CAPACITY)
        device.fail("copy_upload", 0, after=after)
        result = copier.copy(case.transfers)
        assert set(result.failed) == set(case.transfers)
        device.run()
        assert all(not into.any() for into, _ in case.wanted)
        copier.copy(case.transfers).check()
        device.run()
    case.expect()


def test_more_than_one_upload_takes_fails_and_keeps_no_slot():
    device = QueuedDevice()
    copier = PayloadCopier(device, device.stream("stage"), 3)
    pages, out = torch.randn(BLOCKS, BLOCK, WIDTH), torch.zeros(4, WIDTH)
    with pytest.raises(RuntimeError, match="take 4 values"):
        copier.copy([Transfer(PageSlice(pages, np.array([3, 1, 2, 9])), out)]).check()
    for _ in range(4):
        assert copier.ready
        copier.copy([Transfer(PageSlice(pages, np.array([3, 1])), out[:2])]).check()
    assert not copier.ready, "as many uploads as there are slots"
    device.run()
    assert copier.ready


class Producer:
    """Moves a slice, and writes over the old rows as soon as the contract lets it."""

    def __init__(self, device: FaultyStirredDevice, part: PageSlice) -> None:
        self._device = device
        self._stream = device.stream("producer")
        self._part = part
        self._old: list[tuple[Tensor, Event, Event]] = []

    def move(self) -> None:
        pages, slots = self._part.pages, self._part.slots
        moved = torch.zeros(1, *self._part.shape)
        self._device.launch(self._stream, fill, moved, pages, torch.from_numpy(slots.copy()))
        done = self._device.record(self._stream)
        reader = self._part.relocate(moved, np.arange(slots.size), done)
        self._old.append((pages, done, reader))

    def reuse(self) -> bool:
        free = [item for item in self._old if item[1].done() and item[2].done()]
        for item in free:
            self._old.remove(item)
            self._device.launch(self._stream, write_over, item[0])
        return bool(free)


def fill(moved: Tensor, pages: Tensor, slots_n: Tensor) -> None:
    moved[0].copy_(pages.flatten(0, 1)[slots_n])


@pytest.mark.parametrize("seed", range(12))
def test_a_slice_that_moves_between_two_gathers_is_read_where_it_is(seed: int):
    device = FaultyStirredDevice(seed)
    chance = np.random.default_rng(seed)
    with torch.inference_mode():
        copier = PayloadCopier(device, device.stream("stage"), CAPACITY)
        part = PageSlice(torch.randn(BLOCKS, BLOCK, WIDTH), chance.permutation(BLOCKS * BLOCK)[:8])
        wanted_nW = part.rows(torch.from_numpy(part.slots)).clone()
        producer, out_nW, taken = Producer(device, part), torch.zeros(8, WIDTH), 0
        device.synchronize()
        while taken < 8:
            device.host_step()
            producer.reuse()
            if part.moved.done() and copier.ready and chance.random() < 0.3:
                rows = slice(taken, taken := min(8, taken + int(chance.integers(1, 4))))
                copier.copy([Transfer(part, out_nW, np.arange(rows.start, rows.stop), rows)]).check()
            if part.moved.done() and chance.random() < 0.3:
                producer.move()
        device.synchronize()
        while producer.reuse():
            device.synchronize()
    assert torch.equal(out_nW, wanted_nW)
    device.assert_no_races()


def test_a_tensor_of_any_dimensions_is_a_matrix():
    shapes = {(): (1, 1), (3,): (3, 1), (0, 4): (0, 4), (2, 3, 4): (2, 12), (3, 0): (3, 0)}
    assert {shape: tuple(as_matrix(torch.zeros(shape)).shape) for shape in shapes} == shapes


def test_phases_count_as_payload():
    assert {category_of(phase) for phase in ("gather_rows", "copy_rows")} == {PhaseCategory.PAYLOAD}
