"""Windowed attention of chunks of streams against float64. Shapes as in the package."""

import warnings
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni.device.kernel_choice import kernels_of, plain_torch
from omni_vocoder.kernels.window_attention import AttentionInputs, attend_window, kernel, reference
from tests.support.exact import DTYPES, HERE, drawn, served
from tests.support.tiers import SLOW

Shape = tuple[int, ...]
"""T, P, K, query heads of each of them, E / 2."""
ROUNDINGS = {torch.float32: 8, torch.bfloat16: 1, torch.float16: 1}
"""Deviations of a result, in units of its dtype: of half types from the rounding of weights and of the result, which are half a
unit each; of float32 from scores and sums too."""


def odd(random: Random) -> Shape:
    draw = random.randint
    return draw(1, 20), draw(0, 40), draw(1, 2), draw(1, 3), draw(1, 20)


def same(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


class Result(NamedTuple):
    """past: rotated keys and values."""

    mixed_BTX: Tensor
    past_2BKPE: Tensor


class Case:
    """Random tensors of rows with `before` earlier positions each; the past before the start of a stream is NaN. Queries, keys and
    values are parts of one product; parts of the state lie between others."""

    def __init__(
        self,
        shape: Shape,
        before: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device = HERE,
        unseen: float = float("nan"),
    ) -> None:
        self.positions, self.past, self.kv_heads, self.group, half = shape
        self.rows, self.width = len(before), 2 * half
        noise = torch.Generator().manual_seed(sum(shape) + len(before))
        kv_width, width = self.kv_heads * self.width, self.kv_heads * self.group * self.width
        packed = torch.full((self.rows, self.positions + 1, width + 2 * kv_width + 3), float("nan"))
        self.packed = packed.to(device, dtype)
        packed = self.packed[:, :-1, :-3]
        packed.copy_(torch.randn(packed.shape, generator=noise))
        self.query, self.key, self.value = packed.split([width, kv_width, kv_width], 2)
        angle = torch.randn(self.rows, 1, self.positions, half, generator=noise).mul(3).repeat(1, 1, 1, 2)
        before_B = torch.tensor(before, device=device)
        cos, sin = angle.cos().to(device, dtype), angle.sin().to(device, dtype)
        self.inputs = AttentionInputs(cos, sin, before_B, self.past, self.past + 1)
        size = self.kv_heads * self.past * self.width
        self.carried = torch.randn(self.rows, 2 * size + 9, generator=noise).to(device, dtype)
        self.starts = 2, 2 + size + 3
        for part in self.parts():
            for row, count in enumerate(before):
                part[row, :, : max(self.past - count, 0)] = unseen

    def parts(self) -> tuple[Tensor, Tensor]:
        """The past keys and values, views of the state."""
        shape = (self.kv_heads, self.past, self.width)
        keys, values = (
            self.carried[:, start : start + self.kv_heads * self.past * self.width].unflatten(1, shape)
            for start in self.starts
        )
        return keys, values

    def attended(self, settings: kernel.WindowSettings | None = None) -> Result:
        """Leaves the state as it was."""
        kept = self.carried.clone()
        arguments = self.query, self.key, self.value, self.inputs, *self.parts()
        mixed = kernel.attend_window(*arguments, settings=settings or kernel.choose_settings(self.query))
        past = torch.stack(self.parts())
        between = torch.ones_like(kept[0], dtype=torch.bool)
        for start in self.starts:
            between[start : start + self.kv_heads * self.past * self.width] = False
        same(self.carried[:, between], kept[:, between])
        self.carried.copy_(kept)
        return Result(mixed, past)

    def exact(self) -> Result:
        """One query at a time, with the keys that it sees. Rotated by complex numbers, and rounded to the dtype."""
        key, value = (each.unflatten(2, (self.kv_heads, -1)).transpose(1, 2) for each in (self.key, self.value))
        query = self.rotated(self.query.unflatten(2, (-1, self.width)).transpose(1, 2))
        past_key, past_value = self.parts()
        keys = torch.cat((past_key.double(), self.rotated(key)), 2)
        values = torch.cat((past_value, value), 2).double()
        mixed = query.new_zeros(query.shape)
        for row, before in enumerate(self.inputs.before_B.tolist()):
            for position in range(self.positions):
                end = self.past + position + 1
                seen = slice(max(position, self.past - before), end)
                k, v = (each[row, :, seen].repeat_interleave(self.group, 0) for each in (keys, values))
                weights = torch.einsum("he,hje->hj", query[row, :, position], k).mul(self.width**-0.5).softmax(-1)
                mixed[row, :, position] = torch.einsum("hj,hje->he", weights, v)
        past = torch.stack((keys[:, :, self.positions :], values[:, :, self.positions :]))
        return Result(mixed.transpose(1, 2).flatten(2), past)

    def rotated(self, heads: Tensor) -> Tensor:
        """In a half type, as separate operations round; else not rounded."""
        cos, sin = self.inputs.cos_B1TE, self.inputs.sin_B1TE
        if heads.dtype.itemsize < 4:
            return self.inputs.rotate(heads).double()
        low, high = heads.double().chunk(2, -1)
        turn = torch.complex(cos.double(), sin.double()).chunk(2, -1)[0]
        rotated = torch.complex(low, high) * turn
        return torch.cat((rotated.real, rotated.imag), -1)

    def check(self, found: Result) -> None:
        expected = self.exact()
        assert found.mixed_BTX.is_contiguous()
        bound = ROUNDINGS[self.query.dtype] * torch.finfo(self.query.dtype).eps
        error = found.mixed_BTX.double() - expected.mixed_BTX
        assert error.abs().max() <= bound * self._largest()
        # Close in all: one wrong key would show.
        assert error.norm() <= bound * expected.mixed_BTX.norm()
        # Past keys and all values are copied. A compiler may leave out the roundings of a rotation's two products.
        keys, values = found.past_2BKPE.double()
        rounding = 2 * torch.finfo(self.query.dtype).eps * self.magnitudes()
        same(keys.isnan(), expected.past_2BKPE[0].isnan())
        assert ((keys - expected.past_2BKPE[0]).nan_to_num().abs() <= rounding).all()
        same(values, expected.past_2BKPE[1])

    def magnitudes(self) -> Tensor:
        """Of the numbers that each one of the past keys behind the chunk is rotated from; 0 for keys that were past before."""
        key = self.key.unflatten(2, (self.kv_heads, -1)).transpose(1, 2).double()
        low, high = key.abs().chunk(2, -1)
        new = (low + high).repeat(1, 1, 1, 2)
        return torch.cat((new.new_zeros(self.rows, self.kv_heads, self.past, self.width), new), 2)[
            :, :, self.positions :
        ]

    def _largest(self) -> float:
        return float(torch.cat((self.packed.flatten(), self.carried.flatten())).nan_to_num().abs().max())


SMALL = kernel.WindowSettings(block_m=16, block_n=16, num_warps=1)
"""Of which small shapes have several tiles."""
STARTS = [pytest.param(0, id="first"), pytest.param(2, id="few"), pytest.param(10**6, id="many")]
"""Positions before a chunk: of a first one, of one with fewer than the window, of a later one."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", STARTS)
@pytest.mark.parametrize(
    "shape",
    [
        *drawn(odd, 3),
        *(pytest.param(shape, marks=SLOW) for shape in drawn(odd, 6)[3:]),
        (40, 5, 1, 2, 3),  # several tiles of queries; more new positions than past ones
        (3, 37, 2, 1, 4),  # a past of several tiles, shifted by less than one
        served((25, 71, 16, 1, 32)),
        served((20, 249, 8, 1, 32)),
    ],
)
def test_chunks_in_windows_get_exact_attention(shape: Shape, before: int, dtype: torch.dtype) -> None:
    case = Case(shape, (before, before + 1), dtype)
    case.check(case.attended())
    case.check(case.attended(SMALL))


def test_rows_have_streams_of_their_own() -> None:
    case = Case((9, 21, 2, 2, 5), (0, 7, 21, 3, 400))
    case.check(case.attended(SMALL))


def test_nan_in_a_row_stays_there() -> None:
    before = (5, 9, 30)
    case, spoiled = Case((6, 12, 2, 1, 4), before), Case((6, 12, 2, 1, 4), before)
    spoiled.packed[1] = spoiled.carried[1] = float("nan")
    expected = case.attended(SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's, of what NaN does in its own row
        found = spoiled.attended(SMALL)
    for row in (0, 2):
        assert torch.equal(found.mixed_BTX[row], expected.mixed_BTX[row])
        same(found.past_2BKPE[:, row], expected.past_2BKPE[:, row])
    assert found.mixed_BTX[1].isnan().all()


def test_every_output_is_written_and_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((18, 7, 2, 2, 3), (0, 4))
    size = 2 * 18 * 24
    memory = torch.full((size + 50,), 7.0).to(case.query)
    memory[:size] = float("nan")
    new_empty = Tensor.new_empty

    def in_memory(like: Tensor, *sizes: int, **given: Any) -> Tensor:
        return memory[:size].view(sizes) if sizes == (2, 18, 24) else new_empty(like, *sizes, **given)

    monkeypatch.setattr(Tensor, "new_empty", in_memory)
    found = case.attended(SMALL)
    monkeypatch.undo()
    assert found.mixed_BTX.data_ptr() == memory.data_ptr()
    case.check(found)
    assert (memory[size:] == 7).all()


@pytest.mark.parametrize("shape", [(5, 9, 2, 2, 3), (12, 5, 2, 1, 4), (3, 0, 1, 2, 2)], ids=str)
@pytest.mark.parametrize("before", STARTS)
def test_the_reference_is_exact(shape: Shape, before: int) -> None:
    """A mask does not stop NaN: what precedes a stream is zeros there, as it is in a vocoder's state."""
    case = Case(shape, (before, before + 1), torch.float64, torch.device("cpu"), unseen=0.0)
    expected = case.exact()
    mixed = attend_window(case.query, case.key, case.value, case.inputs, *case.parts())
    torch.testing.assert_close(mixed, expected.mixed_BTX)
    torch.testing.assert_close(torch.stack(case.parts()), expected.past_2BKPE)


def test_a_whole_signal_is_a_first_chunk() -> None:
    case = Case((14, 5, 2, 2, 3), (0, 0), torch.float64, torch.device("cpu"), unseen=0.0)
    inputs = AttentionInputs(case.inputs.cos_B1TE, case.inputs.sin_B1TE, case.inputs.before_B, 0, 6)
    torch.testing.assert_close(reference.attend_whole(case.query, case.key, case.value, inputs), case.exact().mixed_BTX)


def test_which_chunks_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 runs in torch on every device, and all in `plain_torch()`."""
    ran: list[torch.dtype] = []
    monkeypatch.setattr(kernel, "attend_window", lambda query, *_, settings: ran.append(query.dtype))
    for dtype in (torch.float32, torch.float64):
        case = Case((2, 3, 1, 1, 2), (1,), dtype, unseen=0.0)
        arguments = case.query, case.key, case.value, case.inputs, *case.parts()
        with kernels_of(torch.device("cuda")):
            attend_window(*arguments)
            with plain_torch():
                attend_window(*arguments)
    assert ran == [torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("positions", [1, 16, 17, 400])
def test_a_query_sees_a_key_of_the_first_tile(positions: int, dtype: torch.dtype) -> None:
    settings = kernel.choose_settings(torch.empty(1, positions, 64, dtype=dtype, device="meta"))
    assert settings.block_m <= settings.block_n


SERVED = [(4, 71, 16, 1, 32), (10, 71, 16, 1, 32), (25, 71, 16, 1, 32), (50, 249, 8, 1, 32), (400, 249, 2, 4, 32)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("shape", SERVED, ids=str)
def test_shapes_of_vocoders(shape: Shape, rows: int, dtype: torch.dtype) -> None:
    case = Case(shape, [100 * row for row in range(rows)], dtype)
    case.check(case.attended())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SERVED, ids=str)
def test_the_state_is_rewritten_in_order(shape: Shape, dtype: torch.dtype) -> None:
    """Of many programs at once. A read of what is written already would differ from one call to the next."""
    case = Case(shape, [40 * row for row in range(64)], dtype)
    first = case.attended()
    expected = case.rotated(case.key.unflatten(2, (case.kv_heads, -1)).transpose(1, 2))
    joined = torch.cat((case.parts()[0].double(), expected), 2)[:, :, shape[0] :]
    same(first.past_2BKPE[0].isnan(), joined.isnan())
    error = (first.past_2BKPE[0].double() - joined).nan_to_num().abs()
    assert (error <= 2 * torch.finfo(dtype).eps * case.magnitudes()).all()
    for _ in range(20):
        again = case.attended()
        assert torch.equal(again.mixed_BTX, first.mixed_BTX)
        same(again.past_2BKPE, first.past_2BKPE)
