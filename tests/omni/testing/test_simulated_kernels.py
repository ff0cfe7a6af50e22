"""Triton kernels in phases: the checker records the bytes that they load and store, under the interpreter."""

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from omni.testing import SimulatedDevice
from omni_ar.kernels.norm.kernel import rms_norm
from tests.omni.testing.pair import fill, look, races_of

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels do not run on the CPU here")


@triton.jit
def double_rows(source_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(source_ptr + at, mask=at < count) * 2, mask=at < count)


@triton.jit
def double_columns(source_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK) * stride
    tl.store(out_ptr + at, tl.load(source_ptr + at) * 2)


@triton.jit
def count_up(out_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, BLOCK), 1.0)


@triton.jit
def exchange(out_ptr):
    tl.atomic_cas(out_ptr, 0, 1)


@triton.jit
def scatter(index_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(index_ptr + at), at)


@triton.jit
def copy_tile(source, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    out.store([0, 0], source.load([0, 0]))


@triton.jit
def raise_scalar(source_ptr, out_ptr):
    tl.store(out_ptr, tl.load(source_ptr) + 1)


def other() -> Tensor:
    return torch.zeros(2, 2)


def tile(x: Tensor) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x, [2, 4])


WRITES = {
    "store": lambda x: double_rows[(2,)](other(), x, 4, BLOCK=2),
    "masked store": lambda x: double_rows[(1,)](other(), x, 3, BLOCK=8),
    "with strides": lambda x: double_columns[(1,)](other(), x, x.stride(0), BLOCK=2),
    "atomic add": lambda x: count_up[(1,)](x, BLOCK=4),
    "compare and swap": lambda x: exchange[(1,)](x.view(torch.int32)),
    "at addresses that were loaded": lambda x: scatter[(1,)](torch.tensor([3, 0]), x, BLOCK=2),
    "one number": lambda x: raise_scalar[(1,)](other(), x[1, 1]),
    "keyword": lambda x: double_rows[(1,)](source_ptr=other(), out_ptr=x, count=4, BLOCK=4),
    "as another type": lambda x: raise_scalar[(1,)](other(), x.view(torch.int16)[1:]),
}
READS = {
    "load": lambda x: double_rows[(2,)](x, other(), 4, BLOCK=2),
    "masked load": lambda x: double_rows[(1,)](x, other(), 3, BLOCK=8),
    "one number": lambda x: raise_scalar[(1,)](x[1], other()),
    "a kernel of the stages'": lambda x: rms_norm(x, torch.ones(2), 1e-6),
    "its weight": lambda x: rms_norm(torch.ones(3, 2), x[0], 1e-6),
}
CASES = [pytest.param(f, True, id=name) for name, f in WRITES.items()] + [
    pytest.param(f, False, id=f"read: {name}") for name, f in READS.items()
]
each_kernel = pytest.mark.parametrize(("kernel", "writes"), CASES)
each_mode = pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference"])


@each_mode
@each_kernel
def test_a_kernel_s_accesses_are_seen(kernel, writes, inference):
    def launch(x: Tensor) -> None:
        kernel(x)

    for touch in (fill, look):
        rows = torch.zeros(6, 2)[2:4]
        for phases in (((launch, rows), (touch, rows)), ((touch, rows), (launch, rows))):
            found = races_of(phases, inference)
            if not writes and touch is look:
                assert found == []
                continue
            mine = {side.writes for race in found for side in (race.first, race.second) if side.by == "launch"}
            assert mine, touch
            assert mine <= {writes, False}
            assert writes in mine


@each_kernel
def test_memory_that_a_kernel_does_not_touch_is_not_reported(kernel, writes):
    def launch(x: Tensor) -> None:
        kernel(x)

    whole = torch.zeros(6, 2)
    assert races_of([(fill, whole[:2]), (launch, whole[2:4]), (fill, whole[4:])]) == []


def test_masks_strides_and_loaded_addresses_give_the_accesses():
    rows = torch.zeros(2, 2)

    def masked(x: Tensor) -> None:
        double_rows[(1,)](other(), x, 3, BLOCK=8)

    def column(x: Tensor) -> None:
        double_columns[(1,)](other(), x, 2, BLOCK=2)

    def scattered(x: Tensor) -> None:
        scatter[(1,)](torch.tensor([3, 0]), x, BLOCK=2)

    for launch, alone in ((masked, rows[1, 1]), (column, rows[:, 1]), (scattered, rows[0, 1]), (scattered, rows[1, 0])):
        assert races_of([(launch, rows), (fill, alone)]) == [], launch
    for launch, shared in ((masked, rows[1, 0]), (column, rows[1, :1]), (scattered, rows[1, 1])):
        assert len(races_of([(launch, rows), (look, shared)])) == 1, launch


def test_descriptors_are_seen():
    source, out = torch.ones(2, 4), torch.zeros(2, 4)

    def launch(x: Tensor) -> None:
        copy_tile[(1,)](tile(x), tile(out), ROWS=2, COLUMNS=4)

    assert {race.first.writes for race in races_of([(launch, source), (fill, source)])} == {False}
    assert {race.first.operation for race in races_of([(launch, source), (look, out)])} == {"copy_tile"}


def test_a_kernel_that_fails_leaves_nothing_behind():
    rows = torch.zeros(2, 2)
    device = SimulatedDevice()

    def broken(x: Tensor) -> None:
        double_rows[(1,)](x, x, "no number", BLOCK=4)

    device.launch(device.stream("broken"), broken, rows)
    with pytest.raises(triton.runtime.errors.InterpreterError):
        device.run()
    device.launch(device.stream("one"), fill, rows)
    device.launch(device.stream("two"), look, rows)
    device.run()
    assert len(device.races) == 1
    double_rows[(1,)](torch.ones(4), rows, 4, BLOCK=4)
    assert rows.tolist() == [[2, 2], [2, 2]], "outside of phases kernels run as ever"


def test_kernels_and_operations_of_one_phase_are_distinguished():
    rows = torch.zeros(4, 2)

    def both(x: Tensor) -> None:
        double_rows[(1,)](x[2:], other(), 4, BLOCK=4)
        x[:2].add_(1)

    (race,) = races_of([(both, rows), (look, rows)])
    assert (race.first.operation, race.byte) == ("add_", 0)
