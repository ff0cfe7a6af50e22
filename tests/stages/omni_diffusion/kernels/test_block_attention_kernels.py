"""Attention of blocks to their neighbours against float64. Shapes as in the package."""

import math
from dataclasses import dataclass
from itertools import product
from random import Random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni.device.kernel_choice import kernels_of, plain_torch
from omni_diffusion.kernels.block_attention import attend_blocks, kernel, reference
from omni_diffusion.precision import products as rounded_products
from tests.support.exact import DTYPES, HERE, drawn, served

Shape = tuple[int, ...]
"""Branches, rows, blocks, frames, heads, width."""


def odd(random: Random) -> Shape:
    draw = random.randint
    return draw(1, 2), draw(1, 3), draw(1, 3), draw(1, 20), draw(1, 3), draw(1, 20)


@dataclass
class Case:
    """Random tensors of rows whose last blocks have fewer frames, or none."""

    qkv: Tensor
    before: Tensor
    bias: Tensor

    @classmethod
    def drawn(cls, shape: Shape, dtype: torch.dtype, follows: bool = True) -> "Case":
        branches, rows, blocks, frames, heads, width = shape
        noise = torch.Generator().manual_seed(sum(shape))
        qkv = torch.randn(branches, rows, blocks, frames, 3, heads, width, generator=noise)
        # As it comes from the history, where rows are outermost.
        before = torch.randn(rows, branches, frames, 2, heads, width, generator=noise).to(HERE, dtype).transpose(0, 1)
        known = torch.randint(1, blocks * frames + 1, (rows, 1), generator=noise)
        counts = (known - torch.arange(blocks) * frames).clamp(0, frames)
        frame = torch.arange(frames)
        own = (frame < counts[:, :, None]) | (counts == 0)[:, :, None]
        back = ((torch.arange(blocks) > 0) | follows).expand(rows, -1)[:, :, None].expand_as(own)
        behind = torch.nn.functional.pad(counts[:, 1:], (0, 1))
        ahead = frame < behind[:, :, None]
        seen = torch.cat((back, own, ahead), 2).expand(branches, -1, -1, -1)
        added = torch.randn(*seen.shape[:3], 1, 1, 3 * frames, generator=noise).expand(-1, -1, -1, -1, frames, -1)
        bias = added.masked_fill(~seen[:, :, :, None, None], float("-inf"))
        return cls(qkv.to(HERE, dtype), before, bias.flatten(0, 2).to(HERE, dtype))

    def attended(self, before: Tensor | None, back: bool, ahead: bool) -> Tensor:
        return kernel.attend_blocks(self.qkv, self.bias, before, back=back, ahead=ahead, precision="ieee")

    def exact(self, before: Tensor | None, back: bool, ahead: bool, absolute: bool = False) -> Tensor:
        """absolute: with the sizes of the values, which bound the terms of each sum."""
        qkv, wide = self.qkv.double(), None if before is None else before.double()
        if absolute:
            qkv[..., 2, :, :] = qkv[..., 2, :, :].abs()
            wide = None if wide is None else torch.stack((wide[..., 0, :, :], wide[..., 1, :, :].abs()), -3)
        return reference.attend_blocks(qkv, self.bias.double(), wide, back=back, ahead=ahead)

    def largest_score(self) -> float:
        """The largest sum of the sizes of a score's terms, its bias among them."""
        q_THW, k_THW, _ = self.qkv.double().abs().flatten(0, 3).unbind(1)
        before_THW = self.before.double().abs().flatten(0, 2)[:, 0]
        scores = torch.einsum("qhw,khw->hqk", q_THW, torch.cat((k_THW, before_THW)))
        bias = float(self.bias[self.bias.isfinite()].abs().max())
        return float(scores.max()) / math.sqrt(self.qkv.shape[-1]) + bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*drawn(odd, 6), served((2, 2, 3, 24, 4, 64))])
def test_every_frame_gets_exact_attention(shape: Shape, dtype: torch.dtype) -> None:
    for follows, back, ahead in product((False, True), repeat=3):
        case = Case.drawn(shape, dtype, follows)
        before = case.before if follows else None
        ours, exact = case.attended(before, back, ahead), case.exact(before, back, ahead)
        # Weights and the result are rounded, and each weight is wrong by as much as its score, whose terms are rounded in float32.
        roundings = 4 * torch.finfo(dtype).eps + 4 * torch.finfo(torch.float32).eps * case.largest_score()
        bound = roundings * case.exact(before, back, ahead, absolute=True)
        assert ((ours.double() - exact).abs() <= bound).all()


def test_frames_that_a_block_does_not_see_have_no_effect() -> None:
    """Of three blocks with one frame missing in the last: the first sees the last neither ahead nor back."""
    case = Case.drawn((1, 1, 3, 4, 2, 8), torch.float32)
    case.bias[2, :, :, 7] = float("-inf")
    before = case.attended(case.before, True, True)
    case.qkv[0, 0, 2, 3, 1:] = 1e9
    after = case.attended(case.before, True, True)
    assert torch.equal(before[:1], after[:1])
    assert torch.equal(before[2, :3], after[2, :3])
    case.before.add_(1)
    assert not torch.equal(case.attended(case.before, True, True)[0], after[0])
    assert torch.equal(case.attended(case.before, True, True)[1:], after[1:])


def test_rows_do_not_depend_on_each_other() -> None:
    case = Case.drawn((2, 3, 2, 5, 2, 8), torch.float32)
    before = case.attended(case.before, True, True)
    case.qkv[:, 1], case.before[:, 1] = 7.0, -7.0
    after = case.attended(case.before, True, True)
    for old, new in zip(
        before.unflatten(0, (2, 3, 2)).unbind(1)[::2], after.unflatten(0, (2, 3, 2)).unbind(1)[::2], strict=True
    ):
        assert torch.equal(old, new)


def test_which_inputs_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 runs in torch on every device, and all in `plain_torch()`. Products are rounded as torch's."""
    ran: list[tuple[Tensor, Tensor, Tensor, str]] = []
    monkeypatch.setattr(kernel, "attend_blocks", lambda *given, precision, **_: ran.append((*given, precision)))
    case = Case.drawn((1, 1, 2, 3, 2, 4), torch.float32)
    given = case.qkv, case.bias, case.before
    with kernels_of(torch.device("cuda")):
        for tf32 in (True, False):
            with rounded_products(tf32):
                attend_blocks(*given, back=True, ahead=False)
        with plain_torch():
            attend_blocks(*given, back=True, ahead=False)
        attend_blocks(*(tensor.double() for tensor in given), back=True, ahead=False)
    assert [precision for *_, precision in ran] == ["tf32", "ieee"]
    assert all(ours is theirs for *ran_with, _ in ran for ours, theirs in zip(ran_with, given, strict=True))


def test_scores_of_a_neighbour_may_be_much_larger() -> None:
    """Without its own maximum, the powers of a score would overflow."""
    case = Case.drawn((1, 1, 3, 6, 2, 8), torch.float32)
    case.bias.zero_()
    case.bias[2, ..., 12:] = float("-inf")
    case.qkv[:, :, 1, :, 1] *= 200
    for back, ahead in ((True, False), (False, True)):
        ours, exact = case.attended(case.before, back, ahead), case.exact(case.before, back, ahead)
        torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-3)
