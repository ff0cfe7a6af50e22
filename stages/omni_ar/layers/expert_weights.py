"""Where a checkpoint's per-expert matrices belong in the stacked parameters of `SparseMoE`."""

import re
from typing import Literal, NamedTuple

from torch import Tensor

ExpertPart = Literal["gate", "up", "down"]

_NAMES: tuple[tuple[ExpertPart, re.Pattern[str]], ...] = (
    ("gate", re.compile(r"(?P<moe>(?:.+\.)?)experts\.(?P<expert>\d+)\.gate_proj\.weight")),
    ("up", re.compile(r"(?P<moe>(?:.+\.)?)experts\.(?P<expert>\d+)\.up_proj\.weight")),
    ("down", re.compile(r"(?P<moe>(?:.+\.)?)experts\.(?P<expert>\d+)\.down_proj\.weight")),
)


class ExpertDestination(NamedTuple):
    """A slice of a stacked parameter: its name, the expert, and which of the expert's matrices it is."""

    parameter: str
    expert: int
    part: ExpertPart

    def view(self, stacked: Tensor) -> Tensor:
        """The view of the parameter's tensor that the checkpoint's matrix is copied to.

        `[I, D]` of `[E, 2I, D]` for gate and up, `[D, I]` of `[E, D, I]` for down.
        """
        expert = stacked[self.expert]
        if self.part == "down":
            return expert
        gate, up = expert.chunk(2, dim=0)
        return gate if self.part == "gate" else up


def expert_destination(name: str) -> ExpertDestination | None:
    """Maps `mlp.experts.3.up_proj.weight` to `("mlp.experts_gate_up", 3, "up")`; None for every other kind of name."""
    for part, pattern in _NAMES:
        match = pattern.fullmatch(name)
        if match is not None:
            stacked = "experts_down" if part == "down" else "experts_gate_up"
            return ExpertDestination(f"{match['moe']}{stacked}", int(match["expert"]), part)
    return None
