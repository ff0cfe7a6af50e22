"""A small text model on a stage with a drafter or without, and what its requests are answered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from omni.stage import Open
from omni.testing import SimulatedDevice
from omni_ar.drafters import Drafter, DraftSetup
from omni_ar.model import ArModel, ArShape
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver, small_context
from tests.support.faults import simulate
from tests.support.small_text import SmallText

MODEL = SmallText(vocab=11, positions=160)
PROMPTS = ([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [5, 6, 7], [8, 9, 10, 8, 9, 10, 8], [3] * 9, [2])
MOST = 40
SEEDED: Mapping[str, Any] = {"temperature": 1.2, "top_k": 6, "seed": 11}
ASKED: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "drawn": SEEDED,
    "penalties": {
        "temperature": 0.7,
        "seed": 5,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
    },
    "bias and stop": {"logit_bias": {3: 2.0, 5: 1.5}, "stop_token_ids": (5,), "min_tokens": 4},
    "allowed ids": {"allowed_token_ids": (1, 2, 4, 6, 8), "temperature": 0.9, "seed": 2},
    "bad words": {"bad_words_ids": ((4,), (5, 6)), "logprobs": 2},
}


class Shaped(SmallText):
    """A model that states another shape than it has."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(vocab=11, positions=160)
        self._changes = changes

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, **self._changes)


def driver_of(
    drafter: str | None = None, device: Any = None, captured: bool = False, made: Drafter | None = None, **options: Any
) -> ArDriver:
    given = ArOptions(**{"max_num_seqs": 4, "block_size": 4, "drafter": drafter, **options})
    return ArDriver(MODEL, device, given, captured=captured, drafter=made)


def draft_setup(model: ArModel, drafts: int) -> DraftSetup:
    shape, context = model.shape, small_context(ArOptions(), {})
    return DraftSetup(
        drafts=drafts,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_positions,
        model=model,
        context=context,
    )


def answers(driver: ArDriver, prompts: Sequence[Sequence[int]] = PROMPTS, **sampling: Any) -> list[list[int]]:
    """Of requests that run together, to their ends. sampling: `max_tokens` may be a tuple, of one number for each."""
    names, most = [f"{len(driver.ends)}-{index}" for index in range(len(prompts))], sampling.pop("max_tokens", MOST)
    for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        max_tokens = most[index] if isinstance(most, tuple) else most
        driver.ask(name, prompt, {"max_tokens": max_tokens, **sampling})
    if isinstance(driver.device, SimulatedDevice):
        ends = len(driver.ends) + sum(isinstance(each, Open) for each in driver.worker.inbox)
        with torch.inference_mode():
            simulate(driver.device, driver.tick, lambda: len(driver.ends) == ends and not driver.held).run()
    else:
        driver.run()
    return [driver.tokens(name) for name in names]
