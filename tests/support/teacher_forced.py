"""Log-probabilities that a model gives known tokens, in prefill and in decode steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from omni.device import open_device
from omni.payload import TokenLogprobs
from omni_ar.attention.select import select_backend
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from support.ar_driver import ArDriver, plain_prompt

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scored:
    """tokens: a prompt and what was said. scores: the log-probability of each but the first. said: how many of them were said."""

    tokens: list[int]
    scores: Scores
    said: int


class Scorer:
    """A model on a device, in batches. captured: its decode steps are."""

    def __init__(self, model: ArModel, device: str, dtype: torch.dtype, attention: str, captured: bool) -> None:
        options = ArOptions(max_num_seqs=8, max_model_len=512, max_num_batched_tokens=600, max_in_flight=3)
        target = open_device(device)
        self._axes = model.shape.position_axes
        backend = select_backend("scored", attention, target, model.shape, dtype, options.block_size)
        self._driver = ArDriver(model, target, options, captured=captured, backend=backend, dtype=dtype)
        target.synchronize()  # weights and zeroed state were written on another stream
        self._count = 0

    def say(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Scored]:
        """Scores prompts, and then so many sampled tokens of each, all requests together."""
        names = [self._ask(prompt, tokens, seed=seed) for seed, prompt in enumerate(prompts)]
        self._finish(names)
        scored = []
        for name, prompt in zip(names, prompts, strict=True):
            said = self._driver.tokens(name)
            assert len(said) == tokens
            scored.append(
                Scored([*prompt, *said], np.concatenate([self._scores(name, True), self._scores(name)]), tokens)
            )
        return scored

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scored]:
        """Scores known texts, in prefill alone."""
        names = [self._ask(text, 1) for text in texts]
        self._finish(names)
        return [Scored(list(text), self._scores(name, True), 0) for name, text in zip(names, texts, strict=True)]

    def _ask(self, ids: Sequence[int], tokens: int, seed: int = 0) -> str:
        name, self._count = str(self._count), self._count + 1
        positions = np.broadcast_to(np.arange(len(ids)), (self._axes, len(ids)))
        prompt = plain_prompt(ids, positions=positions)
        self._driver.ask(
            name, prompt, max_tokens=tokens, prompt_logprobs=0, logprobs=0, temperature=1.0, top_p=0.95, seed=seed
        )
        return name

    def _finish(self, names: Sequence[str]) -> None:
        while not all(name in self._driver.ends for name in names):
            self._driver.tick()
        for name in names:
            self._driver.done(name)

    def _scores(self, name: str, of_prompt: bool = False) -> Scores:
        metas = [produced.payload.meta for produced in self._driver.produced[name]]
        chunks = [meta for meta in metas if isinstance(meta, TokenLogprobs) and meta.prompt == of_prompt]
        chunks.sort(key=lambda chunk: chunk.first)
        return np.concatenate([np.empty(0, np.float32), *(chunk.logprobs[:, 0] for chunk in chunks)])
