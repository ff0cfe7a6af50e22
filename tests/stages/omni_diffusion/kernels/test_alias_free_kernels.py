"""The activation at twice the rate against float64. Shapes as in the package."""

from random import Random

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from omni.device.kernel_choice import kernels_of, plain_torch
from omni_diffusion.kernels.alias_free import REACH, alias_free, kernel, reference, resampling_filters
from omni_frames.snake import SnakeBeta
from tests.support.exact import DTYPES, HERE, drawn, served

Shape = tuple[int, int, int]
"""Rows, channels, samples."""


def odd(random: Random) -> Shape:
    return random.randint(1, 3), random.randint(1, 5), random.randint(1, 60)


def drawn_case(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, SnakeBeta]:
    """A signal, and an activation some of whose sines are of many turns."""
    noise = torch.Generator().manual_seed(sum(shape))
    act = SnakeBeta(shape[1])
    act.alpha.data, act.beta.data = torch.randn(2, shape[1], generator=noise)
    return torch.randn(shape, generator=noise).to(HERE, dtype), act.to(HERE, dtype).requires_grad_(False)


def exact(signal_BCT: Tensor, act: SnakeBeta) -> Tensor:
    filters = [weight.to(HERE).double() for weight in resampling_filters()]
    parameters = SnakeBeta(act.alpha.shape[0]).to(HERE).double()
    parameters.load_state_dict({name: value.double() for name, value in act.state_dict().items()})
    with torch.no_grad():
        return reference.alias_free(signal_BCT.double(), parameters, *filters)


def size(signal_BCT: Tensor, act: SnakeBeta) -> Tensor:
    """Of the terms of each output: an error of a sample, or of a sine's argument by its size, changes the activation by so much."""
    frequency, magnitude = (value.double().exp()[:, None] for value in (act.alpha, -act.beta))
    filters = [weight.to(HERE).double().abs() for weight in resampling_filters()]
    terms_BCT = signal_BCT.double().abs() * (1 + 2 * frequency * magnitude) + magnitude
    return reference.alias_free(terms_BCT, nn.Identity(), *filters)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [*drawn(odd, 5), *((2, 2, length) for length in (1, 2, 3, kernel.COUNT, kernel.COUNT + 1)), served((2, 96, 1000))],
)
def test_every_sample_is_exact(shape: Shape, dtype: torch.dtype) -> None:
    signal_BCT, act = drawn_case(shape, dtype)
    wanted_BCT = exact(signal_BCT, act)
    error_BCT = (kernel.alias_free(signal_BCT, act.alpha, act.beta).double() - wanted_BCT).abs()
    # Everything is in float32 except for the result.
    bound_BCT = 4 * torch.finfo(torch.float32).eps * size(signal_BCT, act) + torch.finfo(dtype).eps * wanted_BCT.abs()
    assert (error_BCT <= bound_BCT).all(), f"off by {float((error_BCT / bound_BCT).max())} times the bound"


def test_a_sample_depends_on_those_within_reach() -> None:
    signal_BCT, act = drawn_case((1, 2, 40), torch.float32)
    before = kernel.alias_free(signal_BCT, act.alpha, act.beta)
    signal_BCT[0, 0, 20] = float("nan")
    changed_T = kernel.alias_free(signal_BCT, act.alpha, act.beta)[0, 0].isnan().nonzero().flatten()
    assert changed_T.tolist() == list(range(20 - REACH, 20 + REACH + 1))
    signal_BCT[0, 0, 20] = 1.0
    assert torch.equal(kernel.alias_free(signal_BCT, act.alpha, act.beta)[0, 1], before[0, 1])


def test_no_divisor_is_zero() -> None:
    signal_BCT, act = drawn_case((1, 2, 11), torch.float32)
    act.beta.fill_(-200.0)
    ours_BCT = kernel.alias_free(signal_BCT, act.alpha, act.beta)
    torch.testing.assert_close(ours_BCT.double(), exact(signal_BCT, act), rtol=1e-3, atol=1e4)


def test_channels_may_be_the_last_dimension_in_memory() -> None:
    signal_BCT, act = drawn_case((2, 3, 11), torch.float32)
    filters = [weight.to(HERE) for weight in resampling_filters()]
    apart_BCT = signal_BCT.transpose(1, 2).contiguous().transpose(1, 2)
    with kernels_of(torch.device("cuda")):
        assert torch.equal(alias_free(apart_BCT, act, *filters), kernel.alias_free(signal_BCT, act.alpha, act.beta))


def test_which_activations_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others, and float64, run in torch, on every device; and all in `plain_torch()`."""
    ran: list[torch.dtype] = []
    monkeypatch.setattr(kernel, "alias_free", lambda signal_BCT, *_: ran.append(signal_BCT.dtype))
    filters = [weight.to(HERE) for weight in resampling_filters()]
    signal_BCT, act = drawn_case((1, 2, 9), torch.float32)
    with kernels_of(torch.device("cuda")), torch.no_grad():
        alias_free(signal_BCT, act, *filters)
        with plain_torch():
            alias_free(signal_BCT, act, *filters)
        alias_free(signal_BCT, nn.Tanh(), *filters)
        alias_free(signal_BCT.double(), act.double(), *(weight.double() for weight in filters))
    assert ran == [torch.float32]
