"""Building blocks of denoisers and of what renders."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from omni_diffusion.layers import AliasFree, AliasFreeUpsampler, RungeKutta, UpsamplerShape

SHAPE = UpsamplerShape(
    inputs=3,
    upsample_initial_channel=8,
    upsample_rates=(3, 2),
    upsample_kernel_sizes=(5, 4),
    resblock_kernel_sizes=(3,),
    resblock_dilation_sizes=((1, 2),),
)


def test_steps_of_order_four() -> None:
    """dx/dt = x from 0 to 1: twice the steps, a sixteenth of the error."""

    def error(steps: int) -> float:
        schedule, x = RungeKutta(steps, sway=0.0), torch.ones(1)
        for step in range(steps):
            x = schedule.advance(x.double(), torch.tensor([step]), lambda state, _: state)
        return abs(float(x) - math.e)

    assert error(4) / error(8) == pytest.approx(16, rel=0.2)


def test_times_are_those_that_are_asked_for() -> None:
    """dx/dt is the time itself: only at the right times is x a half in the end, whatever the steps' lengths."""
    schedule, x = RungeKutta(5), torch.zeros(2, 3)
    for step in range(5):
        x = schedule.advance(
            x, torch.tensor([step, step]), lambda state, evaluation_B: schedule.times_E[evaluation_B][:, None]
        )
    torch.testing.assert_close(x, torch.full((2, 3), 0.5))
    assert schedule.times_E[4] < 0.2


def test_resampling_passes_slow_waves() -> None:
    """At twice the rate nothing is done: what is left is what the two filters do, nothing to slow waves."""
    wave = torch.sin(torch.arange(200) * 0.3)[None, None]
    assert (AliasFree(nn.Identity())(wave) - wave)[:, :, 20:-20].abs().max() < 5e-3


@torch.no_grad()
def test_parts_with_their_context_are_the_whole() -> None:
    torch.manual_seed(0)
    net = AliasFreeUpsampler(SHAPE, lambda channels: nn.Tanh()).double()
    latents = torch.randn(2, 3, 60, dtype=torch.float64)
    whole, context, rate = net(latents), net.context, net.samples_per_frame
    assert whole.shape == (2, 360)
    expected = whole[:, 25 * rate : 35 * rate]

    def error(context: int) -> float:
        part = net(latents[:, :, 25 - context : 35 + context])[:, context * rate : (context + 10) * rate]
        return float((part - expected).abs().max() / expected.abs().max())

    assert error(context) < 1e-12
    assert error(context // 3) > 1e-6


@pytest.mark.parametrize("sizes", [(4, 4), (1, 4)])
def test_kernels_that_give_no_whole_number_of_samples_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="upsample_kernel_sizes"):
        replace(SHAPE, upsample_kernel_sizes=sizes)
    with pytest.raises(ValueError, match="resblock_kernel_sizes"):
        replace(SHAPE, resblock_kernel_sizes=sizes[1:])
