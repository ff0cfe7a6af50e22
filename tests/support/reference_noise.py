"""transformers' own logits processors followed by the engine's noise, under greedy decoding: a sampled run to compare with.

`argmax(warped logits + Gumbel noise)` is a draw from the warped distribution; with the noise shared, both sides must draw
the same tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omni.frontend.base import Chat
from omni.sampling import SamplingParams
from omni_ar.sampling import gumbel

Generate = Callable[..., Any]


class GumbelNoise(LogitsProcessor):
    """Adds the noise that the engine draws with. start: ids that stand before the first generated one."""

    def __init__(self, seed: int, start: int) -> None:
        self._seed = torch.tensor([seed])
        self._start = start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = torch.tensor([input_ids.shape[1] - self._start])
        return scores + gumbel(self._seed, torch.zeros_like(position), position, 0, 0, scores.shape[1])


class GroupNoise(LogitsProcessor):
    """The same for the code groups of frame `position`: the id that comes after n others is of group n + 1."""

    def __init__(self, seed: int, position: int) -> None:
        self._seed = torch.tensor([seed])
        self._position = torch.tensor([position])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        group = input_ids.shape[1] + 1
        zero = torch.zeros_like(self._position)
        return scores + gumbel(self._seed, zero, self._position, group, 0, scores.shape[1])


def sampling_arguments(chat: Chat, prompt: int) -> dict[str, Any]:
    """Keyword arguments of `generate` for the chat's sampling. prompt: tokens of the thinker's prompt.

    The talker gets embeddings, so its processors see generated codes only.
    """
    arguments: dict[str, Any] = {"thinker_do_sample": False}
    if "audio" in chat.modalities:
        arguments["talker_do_sample"] = False
    for stage, start in (("thinker", prompt), ("talker", 0)):
        params = chat.sampling.get(stage)
        if params is None or (stage == "talker" and "audio" not in chat.modalities):
            continue
        if params.max_tokens is not None:
            arguments[f"{stage}_max_new_tokens"] = params.max_tokens
        if params.repetition_penalty is not None:
            arguments[f"{stage}_repetition_penalty"] = params.repetition_penalty
        if params.temperature:
            arguments[f"{stage}_logits_processor"] = sampled_with(params, start)
    return arguments


def sampled_with(params: SamplingParams, start: int) -> LogitsProcessorList:
    """What makes a greedy choice a draw: warpers of the sampling's temperature, top-k and top-p, then its seed's noise."""
    assert params.seed is not None
    return LogitsProcessorList([*_warpers(params), GumbelNoise(params.seed, start)])


def _warpers(params: SamplingParams) -> list[LogitsProcessor]:
    warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p is not None and params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    return warpers


def predictor_noise(chat: Chat) -> Callable[[Generate], Generate] | None:
    """Wraps the code predictor's `generate`, which is called once per frame, or None for a greedy talker."""
    params = chat.sampling.get("talker")
    if params is None or not params.temperature:
        return None
    seed = params.seed
    assert seed is not None

    def wrap(generate: Generate) -> Generate:
        frames = 0

        def noisy(**arguments: Any) -> Any:
            nonlocal frames
            warpers = [TopKLogitsWarper(50), TopPLogitsWarper(0.8), GroupNoise(seed, frames)]
            frames += 1
            return generate(**arguments, logits_processor=LogitsProcessorList(warpers))

        return noisy

    return wrap
