"""A stage with a drafter on a simulated device, under traffic that a seed decides, and what its requests get without drafts."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from omni.stage import Done
from omni.testing import SimulatedDevice, Simulation
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.deep_models import VOCABULARY, Deep, filled
from tests.support.faults import simulate

SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "random": {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 3},
    "hot": {"temperature": 2.0, "min_p": 0.01, "seed": 4},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    "log-probabilities": {"logprobs": 3, "prompt_logprobs": 2, "temperature": 0.7, "seed": 1},
    "stops": {"logit_bias": {5: 4.0, 6: 4.5}, "stop_token_ids": (5,), "min_tokens": 3},
    "bad words": {"bad_words_ids": ((3,), (17, 5), (5, 17, 22)), "logit_bias": {5: 2.0, 17: 2.0, 22: 2.0}},
}
LENGTH = 64


@dataclass(frozen=True)
class DraftedRequest:
    """number: decides the prompt, which repeats itself if it is odd."""

    number: int
    sampling: str
    most: int = 9

    @property
    def ids(self) -> list[int]:
        ids = [(7 * self.number + 3 * place * place) % VOCABULARY for place in range(3 + 4 * (self.number % 5))]
        return ids[:6] * 3 if self.number % 2 else ids

    def put(self, driver: ArDriver, name: str) -> None:
        driver.ask(name, self.ids, SAMPLING[self.sampling], max_tokens=self.most)


def got(driver: ArDriver, name: str) -> tuple[list[int], list[tuple[bool, int, list[list[int]], list[int]]]]:
    """Tokens, and log-probabilities by place: ids and ranks."""
    scores = [(each.prompt, each.first, each.ids.tolist(), each.ranks.tolist()) for each in driver.logprobs(name)]
    rows = [
        (prompt, first + at, [ids[at]], [ranks[at]]) for prompt, first, ids, ranks in scores for at in range(len(ids))
    ]
    return driver.tokens(name), sorted(rows, key=lambda row: (not row[0], row[1]))


@cache
def model() -> Deep:
    return filled(Deep())


@cache
def plain(ask: DraftedRequest) -> Any:
    driver = ArDriver(model(), options=ArOptions(max_num_seqs=1, max_model_len=LENGTH))
    ask.put(driver, "plain")
    driver.run()
    return got(driver, "plain")


@dataclass(frozen=True)
class Scenario:
    """asks: with their rounds. leaves: rounds in which requests are aborted, by index."""

    options: ArOptions
    captured: bool
    asks: tuple[tuple[int, DraftedRequest], ...]
    leaves: Mapping[int, int]

    @classmethod
    def of(cls, seed: int) -> "Scenario":
        draw = random.Random(seed)
        drafter = draw.choice(("ngram", "fabricated", "deep", "deep"))
        args: Mapping[str, Mapping[str, object]] = {
            "ngram": {"fewest": draw.choice((1, 2)), "most": 3},
            "fabricated": {"rate": draw.choice((0.3, 0.8, 1.0))},
            "deep": {"noise": draw.choice((0.0, 0.1, 0.3))},
        }
        rows = draw.choice((1, 3, 4, 4))
        few, chunked = draw.random() < 0.5, draw.random() < 0.4
        options = ArOptions(
            max_num_seqs=rows,
            block_size=4,
            num_blocks=draw.choice((16, 18, 21)) if few else None,
            max_num_batched_tokens=8 if chunked else 64,
            max_model_len=LENGTH,
            max_in_flight=draw.choice((1, 2, 3, 4, 8)),
            prefix_cache=draw.random() < 0.7,
            graph_batch_sizes=(min(rows, 2), min(rows, 3)),
            graph_chunk_sizes=(8,) if chunked else (8, 16),
            drafter=drafter,
            draft_tokens=draw.choice((1, 2, 3, 5, 8)),
            drafter_args=args[drafter],
            adaptive_drafts=draw.random() < 0.6,
            check_logits=draw.random() < 0.3,
        )
        asks: list[tuple[int, DraftedRequest]] = []
        for _ in range(draw.randrange(2, 6)):
            at, ask = (
                draw.randrange(120),
                DraftedRequest(draw.randrange(12), draw.choice(sorted(SAMPLING)), draw.choice((3, 12, 36, 60))),
            )
            # Asked again, its future is known.
            asks += [(at, ask), (at + draw.randrange(100, 500), ask)]
        leaves = {index: at + draw.randrange(200) for index, (at, _) in enumerate(asks) if draw.random() < 0.15}
        return cls(options, draw.random() < 0.5, tuple(asks), leaves)


def run_seed(seed: int) -> Counter[str]:
    return run(Scenario.of(seed), SimulatedDevice(seed))


def run(plan: Scenario, device: SimulatedDevice) -> Counter[str]:
    """To the end of all requests. Raises whatever goes wrong. Returns the stage's counters, and the number of aborts."""
    driver = ArDriver(model(), device, plan.options, captured=plan.captured)
    asked, aborted = set[str](), set[str]()

    def finished() -> bool:
        return len(asked) == len(plan.asks) and asked == set(driver.ends) | aborted and not driver.held

    simulation: Simulation = simulate(device, driver.tick, finished)

    def join(name: str, ask: DraftedRequest) -> None:
        asked.add(name)
        ask.put(driver, name)

    def leave(name: str) -> None:
        if name in asked and name not in driver.ends:
            aborted.add(name)
            driver.abort(name)

    for index, (at, ask) in enumerate(plan.asks):
        simulation.at(at, lambda name=str(index), ask=ask: join(name, ask), "ask")  # type: ignore[misc]
    for index, at in plan.leaves.items():
        simulation.at(at, lambda name=str(index): leave(name), "abort")  # type: ignore[misc]
    with torch.inference_mode():
        simulation.run()
    for index, (_, ask) in enumerate(plan.asks):
        name, expected = str(index), plain(ask)
        if name not in aborted:
            assert isinstance(driver.ends[name], Done), driver.ends[name]
            assert got(driver, name) == expected, f"request {name}: {ask} gets {got(driver, name)}, plainly {expected}"
    device.assert_no_races()
    return Counter(driver.worker.counters()) + Counter(aborts=len(aborted))
