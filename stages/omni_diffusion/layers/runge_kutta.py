"""Steps from noise to latents: Runge-Kutta of order four (the 3/8 rule) over swayed times, 0 to 1."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

STAGES = 4
"""Number of evaluations of a step."""


class RungeKutta:
    """S steps, E evaluations. times_E: float32, times at which the velocity is evaluated. sway: below 0, the first
    steps are shorter."""

    def __init__(self, steps: int, sway: float = -1.0, device: torch.device | str = "cpu") -> None:
        even = torch.linspace(0, 1, steps + 1, dtype=torch.float32, device="cpu")
        points = even + sway * (torch.cos(math.pi / 2 * even) - 1 + even)
        lengths_S, thirds = points.diff(), torch.arange(STAGES, device="cpu") / 3
        self.times_E = (points[:-1, None] + lengths_S[:, None] * thirds).flatten().to(device)
        self._lengths_S = lengths_S.to(device)

    def advance(self, state_BX: Tensor, steps_B: Tensor, velocity: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Advances by one step. state_BX: float32, with any dimensions behind the first. steps_B: int64, each row's
        step.

        velocity: called four times, with states and their evaluations `[B]`.
        """
        length_B = self._lengths_S.index_select(0, steps_B).view(-1, *[1] * (state_BX.dim() - 1))
        first_B = STAGES * steps_B
        k1 = velocity(state_BX, first_B)
        k2 = velocity(state_BX + length_B * k1 / 3, first_B + 1)
        k3 = velocity(state_BX + length_B * (k2 - k1 / 3), first_B + 2)
        k4 = velocity(state_BX + length_B * (k1 - k2 + k3), first_B + 3)
        return state_BX + length_B * (k1 + 3 * (k2 + k3) + k4) / 8
