"""Attention within segments against brute force in float64: tiny under the interpreter, and many shapes on a GPU."""

import random
import warnings

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni_encoder.kernels.segment_attention import attend_segments, kernel, reference
from omni_encoder.segments import segment_bounds
from tests.support.exact import HERE, served

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
SETTINGS = kernel.SegmentSettings(block_m=16, block_n=16, num_warps=4, num_stages=1)


class Batch:
    """Random queries, keys and values, laid out as one product gives them; what pads the batch is NaN."""

    def __init__(
        self,
        lengths: tuple[int, ...],
        padding: int = 0,
        heads: int = 2,
        width: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.lengths, self.used = lengths, sum(lengths)
        noise = torch.Generator().manual_seed(self.used + width)
        packed = torch.full((self.used + padding, 3, heads, width), float("nan"))
        packed[: self.used] = torch.randn(self.used, 3, heads, width, generator=noise)
        self.packed = packed.to(HERE, dtype)
        self.scale = width**-0.5
        self.bounds = torch.zeros(self.used + padding, 2, dtype=torch.int32)
        self.bounds[: self.used] = torch.from_numpy(segment_bounds(lengths))
        self.bounds = self.bounds.to(HERE)

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.packed.unbind(1)
        # Queries and keys are turned first, which makes them tensors of their own.
        return q.contiguous(), k.contiguous(), v

    def attend(self, settings: kernel.SegmentSettings = SETTINGS) -> Tensor:
        # The interpreter would warn of what NaN does in its own positions.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return kernel.attend_segments(*self.qkv(), self.bounds, self.scale, settings)

    def exact(self) -> Tensor:
        """Segment by segment, and zeros for padding."""
        out = torch.zeros_like(self.packed[:, 0], dtype=torch.float64)
        start = 0
        for length in self.lengths:
            q, k, v = (t[start : start + length].double() for t in self.packed.unbind(1))
            weights = torch.einsum("qhw,khw->hqk", q, k).mul(self.scale).softmax(-1)
            out[start : start + length] = torch.einsum("hqk,khw->qhw", weights, v)
            start += length
        return out


def check(ours: Tensor, exact: Tensor) -> None:
    """Within the rounding of the result, and close in all: one wrong key would show."""
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)
    if exact.any():
        assert (ours - exact).norm() / exact.norm() < tolerance / 2


@pytest.mark.parametrize(
    ("lengths", "padding", "heads", "width"),
    [
        pytest.param((37,), 0, 2, 16, id="one segment"),
        pytest.param((16, 32), 0, 2, 16, id="whole tiles"),
        pytest.param((5, 20, 9), 11, 2, 24, id="several in a tile, and padding"),
        pytest.param((1, 1, 1, 18, 1), 1, 1, 8, id="segments of one"),
        pytest.param((3, 17), 40, 2, 40, id="heads in two parts, tiles of padding"),
        pytest.param((), 20, 1, 16, id="padding alone"),
    ],
)
def test_segments_get_exact_attention(lengths: tuple[int, ...], padding: int, heads: int, width: int) -> None:
    batch = Batch(lengths, padding, heads, width)
    ours = batch.attend()
    check(ours, batch.exact())
    assert ours.is_contiguous()


def test_heads_in_two_parts_equal_heads_in_one() -> None:
    assert kernel.head_parts(40, True) == (32, 16)
    batch = Batch((19,), width=40)
    torch.testing.assert_close(batch.attend(), batch.attend(SETTINGS._replace(split=False)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(7, 7, 3), (4,), (1, 2, 2, 9)])
def test_the_reference_is_the_same_with_a_mask_and_by_parts(lengths: tuple[int, ...]) -> None:
    batch, padded = Batch(lengths), Batch(lengths, 5)
    padded.packed.nan_to_num_()  # a mask does not stop NaN
    exact = padded.exact()
    check(reference.attend_segments(*padded.qkv(), padded.bounds, None, padded.scale), exact)
    check(reference.attend_segments(*batch.qkv(), batch.bounds, lengths, batch.scale), exact[: batch.used])


def test_a_nan_stays_in_its_segment() -> None:
    batch = Batch((6, 9, 5))
    before = batch.attend()
    batch.packed[6:15] = float("nan")
    after = batch.attend()
    assert after[6:15].isnan().all()
    assert torch.equal(after[:6], before[:6])
    assert torch.equal(after[15:], before[15:])


@pytest.mark.parametrize(("heads", "width"), [served(2, 64), served(2, 72)])
def test_segments_with_heads_of_served_models(heads: int, width: int) -> None:
    batch = Batch((100, 70, 9), 20, heads, width, torch.bfloat16)
    check(batch.attend(kernel.choose_settings(torch.bfloat16)), batch.exact())


def test_bounds_of_each_position() -> None:
    assert segment_bounds((2, 0, 1)).tolist() == [[0, 2], [0, 2], [2, 3]]
    assert segment_bounds(()).shape == (0, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [16, 20, 32, 40, 64, 72, 80, 96, 104, 128])
def test_random_segments_get_exact_attention(dtype: torch.dtype, width: int) -> None:
    chance = random.Random(f"{dtype}{width}")
    for longest in (1, 30, 130, 700, 3000):
        heads, count = chance.choice([1, 3, 16]), chance.choice([1, 2, 7])
        lengths = tuple(chance.randint(1, longest) for _ in range(count))
        batch = Batch(lengths, chance.choice([0, 1, 200]), heads, width, dtype)
        ours = attend_segments(*batch.qkv(), batch.bounds, None, batch.scale)
        check(ours, batch.exact())
        assert torch.equal(attend_segments(*batch.qkv(), batch.bounds, None, batch.scale), ours)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [64, 72])
def test_a_segment_s_result_is_the_same_to_the_bit_wherever_it_lies(dtype: torch.dtype, width: int) -> None:
    alone, behind = Batch((700,), width=width, dtype=dtype), Batch((9, 700, 104), 76, width=width, dtype=dtype)
    behind.packed[9:709] = alone.packed
    ours = [attend_segments(*batch.qkv(), batch.bounds, None, batch.scale) for batch in (alone, behind)]
    assert torch.equal(ours[1][9:709], ours[0])


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "width", "positions"), [(16, 72, 4160), (20, 64, 1040)])
def test_captured_attention_reads_bounds_when_it_is_replayed(heads: int, width: int, positions: int) -> None:
    fixed = Batch((), positions, heads, width, torch.bfloat16)
    q, k, v = fixed.qkv()

    def attend() -> Tensor:
        return attend_segments(q, k, v, fixed.bounds, None, fixed.scale)

    attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    for lengths in ((positions,), (104,) * 9 + (91,), (1, 2, 3, 500), ()):
        batch = Batch(lengths, positions - sum(lengths), heads, width, torch.bfloat16)
        for there, here in zip((q, k, v, fixed.bounds), (*batch.qkv(), batch.bounds), strict=True):
            there.copy_(here)
        graph.replay()
        check(out, batch.exact())
