"""Checks that rows spread over experts as real traffic does: a step's time is meaningless if a few experts do all the work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from bench.engine import BenchEngine
from bench.floors import experts_of, uniform_experts
from omni_ar.kernels.linear import linear
from omni_ar.kernels.moe import Experts, Norm, mix_experts, route
from omni_ar.kernels.norm import rms_norm
from omni_ar.layers import moe

TOLERANCE = 0.05
"""A share of what uniform choices give."""


class Routing(NamedTuple):
    """Distinct experts a layer: counted, mean over layers and steps, and what uniform choices would give."""

    counted: float
    uniform: float


def is_void(routing: Routing | None) -> bool:
    """Whether the times of these steps are void. routing: None for a dense model."""
    return routing is not None and abs(routing.counted / routing.uniform - 1) > TOLERANCE


def routing_text(routing: Routing | None) -> str:
    """The routing as a table's text."""
    return f"{routing.counted:.1f} ({routing.uniform:.1f})" if routing is not None else ""


@contextmanager
def observe_routing(callback: Callable[[Tensor], None]) -> Iterator[None]:
    """While entered, every layer in turn calls `callback(expert_TK)`: `[T, K]`, integers on the layer's device and the current
    stream. The experts are computed again: of two with nearly equal logits it may choose the other. A step that is replayed from a
    graph makes no call."""

    def observed(x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts) -> tuple[Tensor, Tensor]:
        y_TD, sum_TD = mix_experts(x_TD, delta_TD, norm, experts)
        normed_TD = sum_TD if norm is None else rms_norm(sum_TD, norm.weight_D, norm.eps)
        callback(route(linear(normed_TD, experts.router_ED), experts.top_k, experts.norm_topk)[1])
        return y_TD, sum_TD

    with patch.object(moe, "mix_experts", observed):
        yield


def count_experts(bench: BenchEngine, rows: int, run: Callable[[], None], positions: int = 1) -> dict[str, Routing]:
    """Routing by stage with experts, in the steps of `run` in which all `rows` rows decode. `bench` has no captured graphs: replays
    cannot be recorded. positions: maximum number of a row in one step, drafts included; the uniform choices are those of one."""
    tokens = range(rows, rows * positions + 1, rows)
    sizes = {stage: experts_of(runner._model) for stage, runner in bench.runners.items()}
    counts: dict[str, list[Tensor]] = {stage: [] for stage, (experts, _) in sizes.items() if experts}

    def see(expert_TK: Tensor) -> None:
        # Stages are ticked by one thread: the layer is of the newest step of all.
        begun = [(recorder.steps[-1], stage) for stage, recorder in bench.recorders.items() if recorder.steps]
        step, stage = max(begun, key=lambda one: one[0].started)
        if step.rows == rows and expert_TK.shape[0] in tokens and not step.prompt_tokens:
            used_E = torch.zeros(sizes[stage][0], dtype=torch.int64, device=expert_TK.device)
            counts[stage].append(used_E.index_fill_(0, expert_TK.flatten().long(), 1).sum())

    with observe_routing(see):
        run()
    return {
        stage: Routing(float(torch.stack(of).double().mean()), uniform_experts(*sizes[stage], rows))
        for stage, of in counts.items()
    }
