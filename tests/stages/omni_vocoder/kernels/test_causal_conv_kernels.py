"""A convolution with the addition and the activation after it against float64. Shapes as in the package."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni.device.kernel_choice import kernels_of, plain_torch
from omni_vocoder.kernels.causal_conv import Snake, causal_conv, kernel
from tests.support.exact import DTYPES, HERE, drawn, served

Shape = tuple[int, ...]
"""Rows, positions, channels in, channels out, samples of a position, taps, dilation."""


def odd(random: Random) -> Shape:
    draw = random.randint
    return draw(1, 3), draw(1, 20), draw(1, 40), draw(1, 20), draw(1, 3), draw(1, 7), draw(1, 4)


class Case:
    """Random tensors; rows of inputs and outputs are apart, with NaN between them."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device = HERE) -> None:
        self.rows, self.positions, channels, outputs, rate, taps, self.dilation = shape
        noise = torch.Generator().manual_seed(sum(shape))

        def drawn(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=noise).to(device, dtype)

        self.terms = taps * channels
        length = self.positions + (taps - 1) * self.dilation
        self.x = drawn(self.rows, length + 1, channels)
        self.x[:, -1] = float("nan")
        self.x = self.x[:, :-1]
        self.weight = drawn(taps, channels, rate * outputs) / (taps * channels) ** 0.5
        self.bias = drawn(rate * outputs)
        self.residual = drawn(self.rows, self.positions, rate * outputs)
        # Some arguments of the sine are many turns.
        self.snake = Snake(2 * drawn(outputs), drawn(outputs))

    def outputs(self) -> tuple[Tensor, Tensor]:
        memory = torch.full((2, self.rows, self.positions + 2, self.bias.shape[0]), float("nan")).to(self.x)
        summed, activated = memory[:, :, 1:-1].unbind()
        return summed, activated

    def exact(self, residual: bool) -> tuple[Tensor, Tensor]:
        exact = self._sum(residual, torch.Tensor.double)
        alpha, beta = (parameter.double().repeat(self.bias.shape[0] // parameter.shape[0]) for parameter in self.snake)
        return exact, exact + (exact * alpha.exp()).sin().square() / beta.exp()

    def size(self, residual: bool) -> Tensor:
        """Of the terms of each sum."""
        return self._sum(residual, lambda tensor: tensor.double().abs())

    def _sum(self, residual: bool, of: Callable[[Tensor], Tensor]) -> Tensor:
        x, weight, total = of(self.x), of(self.weight), of(self.bias)
        for tap in range(weight.shape[0]):
            total = total + x[:, tap * self.dilation :][:, : self.positions] @ weight[tap]
        return total + of(self.residual) if residual else total


SMALL = kernel.ConvSettings(block_m=16, block_n=16, block_k=16, num_warps=4, num_stages=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [*drawn(odd, 6), served((2, 160, 64, 128, 1, 7, 9)), served((1, 16, 96, 96, 3, 2, 1))]
)
def test_sums_and_activations(shape: Shape, dtype: torch.dtype) -> None:
    case = Case(shape, dtype)
    for residual in (False, True):
        summed, activated = case.outputs()
        causal_conv_here(case, residual, summed, activated)
        exact_sum, exact_activated = case.exact(residual)
        # The result is rounded once, and each term of the sum in float32.
        roundings = 2 * torch.finfo(dtype).eps + case.terms**0.5 * torch.finfo(torch.float32).eps
        bound = roundings * case.size(residual)
        assert ((summed.double() - exact_sum).abs() <= bound).all()
        assert ((activated.double() - exact_activated).abs() <= _slope(case) * bound).all()


def causal_conv_here(
    case: Case,
    residual: bool,
    summed: Tensor | None,
    activated: Tensor | None,
    settings: kernel.ConvSettings | None = None,
) -> None:
    if settings is None:
        small = case.x.dtype.itemsize > 2 or case.weight.shape[1] % 32
        settings = SMALL if small else kernel.choose_settings(case.x, case.weight)
    kernel.causal_conv(
        case.x,
        case.weight,
        case.bias,
        case.dilation,
        case.residual if residual else None,
        case.snake if activated is not None else None,
        summed,
        activated,
        settings=settings,
    )


def _slope(case: Case) -> Tensor:
    """The largest derivative of the activation, at least 1."""
    alpha, beta = (parameter.double().repeat(case.bias.shape[0] // parameter.shape[0]) for parameter in case.snake)
    return 1 + alpha.exp() / beta.exp()


PARTS = SMALL._replace(rest_n=16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [(2, 20, 32, 48, 1, 3, 2), (1, 7, 64, 30, 1, 2, 1), (2, 5, 48, 20, 2, 1, 1), (1, 9, 21, 33, 1, 2, 3)],
    ids=str,
)
def test_tiles_of_two_parts(shape: Shape, dtype: torch.dtype) -> None:
    """Channels in and out that a tile divides, that only its first part divides, and others."""
    case = Case(shape, dtype)
    one, two = case.outputs(), case.outputs()
    causal_conv_here(case, True, *one)
    causal_conv_here(case, True, *two, settings=PARTS)
    bound = (2 * torch.finfo(dtype).eps + case.terms**0.5 * torch.finfo(torch.float32).eps) * case.size(True)
    assert ((two[0].double() - one[0].double()).abs() <= bound).all()
    assert ((two[1].double() - one[1].double()).abs() <= _slope(case) * bound).all()


def test_each_output_is_written_where_it_is_asked_for() -> None:
    case = Case((2, 5, 3, 4, 2, 3, 2), torch.float32)
    both = case.outputs()
    causal_conv_here(case, True, *both)
    summed, activated = case.outputs()
    causal_conv_here(case, True, summed, None)
    assert torch.equal(summed, both[0])
    assert activated.isnan().all()
    summed, activated = case.outputs()
    causal_conv_here(case, True, None, activated)
    assert torch.equal(activated, both[1])
    assert summed.isnan().all()


def test_memory_around_the_outputs_is_not_written() -> None:
    case = Case((2, 17, 3, 5, 1, 2, 1), torch.float32)
    memory = torch.full((2, 19, 5), 7.0).to(case.x)
    causal_conv_here(case, False, memory[:, 1:-1], None)
    assert (memory[:, [0, -1]] == 7).all()


def test_rows_do_not_depend_on_each_other() -> None:
    case = Case((3, 9, 6, 4, 1, 3, 2), torch.float32)
    summed, activated = case.outputs()
    causal_conv_here(case, True, summed, activated)
    case.x[1] = float("nan")
    again, active = case.outputs()
    causal_conv_here(case, True, again, active)
    for row in (0, 2):
        assert torch.equal(again[row], summed[row])
        assert torch.equal(active[row], activated[row])


@pytest.mark.parametrize("residual", [False, True])
def test_the_reference_is_exact(residual: bool) -> None:
    case = Case((2, 7, 5, 3, 2, 3, 2), torch.float64, torch.device("cpu"))
    summed, activated = case.outputs()
    given = case.residual if residual else None
    causal_conv(
        case.x,
        case.weight,
        case.bias,
        case.dilation,
        residual_BTN=given,
        snake=case.snake,
        sum_BTN=summed,
        activated_BTN=activated,
    )
    exact = case.exact(residual)
    torch.testing.assert_close(summed, exact[0])
    torch.testing.assert_close(activated, exact[1], rtol=1e-7, atol=1e-7)


def test_which_inputs_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 runs in torch on every device, and all in `plain_torch()`."""
    ran: list[torch.dtype] = []
    monkeypatch.setattr(kernel, "causal_conv", lambda x, *_, settings: ran.append(x.dtype))
    for dtype in (torch.float32, torch.float64):
        case = Case((1, 2, 3, 4, 1, 2, 1), dtype)
        summed, _ = case.outputs()
        with kernels_of(torch.device("cuda")):
            causal_conv(case.x, case.weight, case.bias, 1, sum_BTN=summed)
            with plain_torch():
                causal_conv(case.x, case.weight, case.bias, 1, sum_BTN=summed)
    assert ran == [torch.float32]


@pytest.mark.parametrize("rows", [1, 16, 128])
def test_tiles_fill_a_device_where_there_is_enough(rows: int) -> None:
    weight = torch.empty(7, 192, 192, dtype=torch.bfloat16, device="meta")
    settings = kernel.choose_settings(torch.empty(rows, 2560, 192, dtype=torch.bfloat16, device="meta"), weight)
    assert settings.block_k == 64
    chosen = settings.block_m, settings.block_n, settings.rest_n
    assert chosen == {1: (64, 32, 0), 16: (128, 64, 32), 128: (128, 64, 32)}[rows]


@pytest.mark.parametrize("taps", [1, 2, 7])
@pytest.mark.parametrize("outputs", [1, 16, 96, 288, 384, 1536])
def test_tiles_hold_no_channels_in_vain(taps: int, outputs: int) -> None:
    """Of layers with many positions, except for those whose channels are no multiple of 16."""
    weight = torch.empty(taps, 384, outputs, dtype=torch.bfloat16, device="meta")
    settings = kernel.choose_settings(torch.empty(64, 4000, 384, dtype=torch.bfloat16, device="meta"), weight)
    width = settings.block_n + settings.rest_n
    assert max(outputs, 16) % width == 0
    assert 384 % settings.block_k == 0


CHOSEN = [
    ((16, 7, 1024, 1536, 4), (128, 128, 64, 4, 3)),
    ((16, 2, 768, 1920, 32), (256, 128, 64, 8, 3)),
    ((16, 2, 384, 768, 160), (128, 64, 64, 4, 3)),
    ((16, 2, 192, 288, 640), (128, 64, 64, 4, 3, 32)),
    ((16, 7, 384, 384, 160), (256, 128, 64, 8, 3)),
    ((16, 7, 192, 192, 640), (128, 64, 64, 4, 3, 32)),
    ((16, 7, 96, 96, 1920), (128, 64, 32, 4, 4, 32)),
    ((16, 1, 384, 384, 160), (128, 64, 64, 4, 3)),
    ((16, 1, 192, 192, 640), (128, 64, 64, 4, 3)),
    ((16, 1, 96, 96, 1920), (128, 32, 32, 4, 3)),
    ((16, 7, 96, 1, 1920), (128, 16, 32, 4, 3)),
    # Too few of the largest tiles, which fill the device twice; and of those of 96 channels.
    ((8, 7, 768, 768, 32), (128, 128, 64, 4, 3)),
    ((2, 7, 192, 192, 128), (64, 64, 64, 4, 4)),
    # Channels that 96 does not divide.
    ((32, 7, 128, 128, 640), (128, 64, 64, 4, 3)),
]


@pytest.mark.parametrize(("layer", "expected"), CHOSEN, ids=str)
def test_tiles_of_layers(layer: Shape, expected: tuple[int, ...]) -> None:
    """By rows, taps, channels in and out, and positions of a frame, in chunks of 25 frames. Those of 16 rows were measured."""
    rows, taps, channels, outputs, positions = layer
    x = torch.empty(rows, 25 * positions + taps - 1, channels, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(taps, channels, outputs, dtype=x.dtype, device="meta")
    assert kernel.choose_settings(x, weight) == kernel.ConvSettings(*expected)
    assert kernel.choose_settings(x.float(), weight.float()).num_stages == 1
