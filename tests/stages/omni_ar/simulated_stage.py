"""A stage that is cut across simulated ranks, under traffic that a seed decides, and what its requests get of the whole model."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from omni.device import Phase, Stream
from omni.parallel import RankLayout
from omni.payload import PageSlice, Payload
from omni.stage import Failed
from omni.testing import SimulatedDevice
from omni.testing.simulation.ranks import SimulatedRanks
from omni.testing.stages.driver import SOURCE
from omni_ar.drafters import Drafter
from omni_ar.inputs import MultimodalEmbedding, Placeholder, StepInputs
from omni_ar.model import ArModel, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.run.follower import FollowerWorker
from omni_ar.run.pipeline import copy_tensor
from tests.support.ar_driver import TEXT as TEXT_EDGE
from tests.support.ar_driver import ArDriver, plain_prompt, small_drafter, small_runner
from tests.support.deep_models import LAYERS, VOCABULARY, WIDTH, Deep, DeepConditioned, DeepTalker, filled, range_of
from tests.support.small_codec import codec_prompt

SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "random": {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 3},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    "log-probabilities": {"logprobs": 3, "prompt_logprobs": 2, "temperature": 0.7, "seed": 1},
    "stops": {"logit_bias": {5: 4.0, 6: 4.5}, "stop_token_ids": (5,), "min_tokens": 3},
}
TALKER_SAMPLING: Mapping[str, Mapping[str, Any]] = {"greedy": {}, "random": {"temperature": 1.0, "seed": 5}}


@dataclass(frozen=True)
class SimulatedRequest:
    """number: decides the prompt. sees: whether it has an embedding, which rank 0 alone is fed. wrong: whether that has a wrong
    width. most: the maximum number of its tokens."""

    number: int
    sampling: str
    sees: bool = False
    most: int = 9
    wrong: bool = False

    @property
    def ids(self) -> list[int]:
        length = 3 + 4 * (self.number % 5) + 3 * self.sees
        return [(7 * self.number + 3 * place * place) % VOCABULARY for place in range(length)]


def ask_text(driver: ArDriver, name: str, ask: SimulatedRequest) -> None:
    if not ask.sees:
        driver.ask(name, ask.ids, SAMPLING[ask.sampling], max_tokens=ask.most)
        return
    place = Placeholder(name="picture", index=0, positions=np.arange(2, 5))
    prompt = plain_prompt(ask.ids, placeholders=(place,))
    driver.ask(name, prompt, SAMPLING[ask.sampling], sources=("eyes",), max_tokens=ask.most)
    rows = torch.randn(3, WIDTH + ask.wrong, generator=torch.Generator().manual_seed(ask.number))
    driver.feed_host(name, Payload(MultimodalEmbedding(name="picture", index=0), {"embeddings": rows}))
    driver.end(name, source="eyes")


def ask_conditioned(driver: ArDriver, name: str, ask: SimulatedRequest) -> None:
    """Its vectors are in pages that another stream writes meanwhile, as another stage does."""
    count, device = 3 + ask.number % 5, driver.device
    driver.ask(name, ask.ids, SAMPLING[ask.sampling], sources=(SOURCE, TEXT_EDGE), max_tokens=ask.most)
    given = torch.randn(count, 1, DeepConditioned.heard, generator=torch.Generator().manual_seed(ask.number))
    for first in range(0, count, 2):
        part, stream = given[first : first + 2], device.stream("producer")
        pages = device.zeros(tuple(part.shape), part.dtype)
        device.launch(stream, copy_tensor, part, pages)
        columns = np.array(
            [[(ask.number + 2 * index) % DeepConditioned.texts for index in range(first, first + len(part))]]
        )
        payload = Payload(StepInputs(columns=columns), {"vectors": PageSlice(pages, np.arange(len(part)))})
        driver.feed(name, payload, device.record(stream))
    driver.condition(name, [], pad=2)


def ask_talker(driver: ArDriver, name: str, ask: SimulatedRequest) -> None:
    prompt = codec_prompt([each % DeepTalker.texts for each in ask.ids], [each % DeepTalker.codes for each in ask.ids])
    driver.speak(name, prompt, [ask.number % 9, 3, 4], TALKER_SAMPLING[ask.sampling], pad=2, max_tokens=ask.most)


@dataclass(frozen=True)
class Kind:
    """make: the whole model. got: a request's results so far."""

    make: Callable[[], ArModel]
    ask: Callable[[ArDriver, str, SimulatedRequest], None]
    got: Callable[[ArDriver, str], Any]
    sampling: Mapping[str, Mapping[str, Any]]


def _scored(driver: ArDriver, name: str) -> Any:
    scores: dict[bool, list[list[int]]] = {True: [], False: []}
    for each in driver.logprobs(name):
        scores[each.prompt] += each.ids.tolist()
    return driver.tokens(name), scores


TEXT = Kind(Deep, ask_text, _scored, SAMPLING)
CONDITIONED = Kind(DeepConditioned, ask_conditioned, _scored, SAMPLING)
TALKER = Kind(DeepTalker, ask_talker, lambda driver, name: driver.frames(name), TALKER_SAMPLING)
KINDS = {"text": TEXT, "conditioned": CONDITIONED, "talker": TALKER}


CONTENTS: Mapping[str, Sequence[int]] = {
    "send_tensors": (2,),
    "post_tensors": (2,),
    "receive_tensors": (2,),
    "send_inputs": (1, 3),
}
"""The arguments of transfers that have their tensors."""


class RaisingDevice(SimulatedDevice):
    """What some phases raise comes out of their launch, as on a real device: those that embed a wrong width, and the launches whose
    numbers are in `fails`, by name. A transfer without contents is refused: ranks leave it out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fails: Mapping[str, Collection[int]] = {}
        self._launched: Counter[str] = Counter()

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        name = phase.__name__
        self._launched[name] += 1
        wrong = any(tensor.shape[1] != WIDTH for tensor in _embeddings(buffers))
        if wrong or self._launched[name] in self.fails.get(name, ()):
            raise ValueError("broken")
        assert any(buffers[at] for at in CONTENTS.get(name, ())) == (name in CONTENTS), f"{name} transfers nothing"
        super().launch(stream, phase, *buffers)


def _embeddings(buffers: Sequence[object]) -> Iterator[Tensor]:
    for buffer in buffers:
        if isinstance(buffer, PromptTokens):
            yield from (each.tensors["embeddings"] for each in buffer.embeddings)


@cache
def alone(kind: str, ask: SimulatedRequest) -> Any:
    driver = ArDriver(filled(KINDS[kind].make()))
    KINDS[kind].ask(driver, "alone", ask)
    driver.gather_all()
    return KINDS[kind].got(driver, "alone")


@dataclass(frozen=True)
class Scenario:
    """asks: with their rounds. leaves: rounds in which requests are aborted, by index. fails: of `RaisingDevice`. rests: the rounds
    between which requests are paused, by index."""

    kind: str
    layout: RankLayout
    options: ArOptions
    captured: bool
    asks: tuple[tuple[int, SimulatedRequest], ...]
    leaves: Mapping[int, int]
    fails: Mapping[str, Collection[int]] = field(default_factory=dict)
    rests: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, tensor: int = 1, pipeline: int | None = None) -> "Scenario":
        """tensor: number of shards of each layer. pipeline: of layer ranges; None for any."""
        draw = random.Random(seed)
        kind, drawn = draw.choice(("text", "text", "talker")), draw.choice((2, 2, 3, 4) if tensor == 1 else (1, 1, 2))
        layout = RankLayout(tensor=tensor, pipeline=pipeline or drawn)
        count = draw.randrange(3, 8)
        few, chunked = draw.random() < 0.5, draw.random() < 0.5
        options = ArOptions(
            max_num_seqs=draw.choice((1, 3, 4, 4)),
            block_size=4,
            num_blocks=draw.choice((10, 11, 13)) if few else None,
            max_num_batched_tokens=8 if chunked else 64,
            max_model_len=40,
            max_in_flight=draw.choice((1, 2, 4, 8)),
            prefix_cache=draw.random() < 0.7,
            graph_chunk_sizes=(8,) if chunked else (8, 16),
            hidden_layers=(1, LAYERS - 1) if kind == "text" and draw.random() < 0.3 else (),
        )
        asks = [
            (
                draw.randrange(120),
                SimulatedRequest(
                    draw.randrange(12),
                    draw.choice(sorted(KINDS[kind].sampling)),
                    sees=kind == "text" and draw.random() < 0.3,
                    most=draw.choice((3, 9, 16)),
                ),
            )
            for _ in range(count)
        ]
        leaves = {index: asks[index][0] + draw.randrange(300) for index in range(count) if draw.random() < 0.2}
        return cls(kind, layout, options, draw.random() < 0.5, tuple(asks), leaves)

    @classmethod
    def conditioned(cls, seed: int, tensor: int = 1, pipeline: int | None = None) -> "Scenario":
        """As `of`, of a conditioned model."""
        plan, draw = cls.of(seed, tensor, pipeline), random.Random(f"conditioned {seed}")
        asks = [(at, replace(ask, sampling=draw.choice(sorted(SAMPLING)), sees=False)) for at, ask in plan.asks]
        return replace(plan, kind="conditioned", asks=tuple(asks))

    @classmethod
    def failing(cls, seed: int, tensor: int = 1, pipeline: int | None = None) -> "Scenario":
        """As `of`, of text, with requests and steps that fail: at all ranks, and at those with the last layers."""
        plan, draw = cls.of(seed, tensor, pipeline), random.Random(f"failing {seed}")
        asks = [(at, replace(ask, sampling=draw.choice(sorted(SAMPLING)))) for at, ask in plan.asks]
        for number in range(draw.choice((1, 2))):
            asks.append((draw.randrange(120), SimulatedRequest(number, "greedy", sees=True, wrong=True)))
        fails = {name: draw.sample(range(1, 60), 2) for name in ("embed_inputs", "compute_logits")}
        starts = {index: at + draw.randrange(100) for index, (at, _) in enumerate(asks) if draw.random() < 0.4}
        rests = {index: (start, start + draw.randrange(150)) for index, start in starts.items()}
        return replace(plan, kind="text", asks=tuple(asks), fails=fails, rests=rests)


@dataclass
class SimulatedStage:
    """counters: what happened, of all kinds of events."""

    scenario: Scenario
    world: SimulatedRanks
    counters: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        plan, world = self.scenario, self.world
        models = [self._model(rank) for rank in range(plan.layout.size)]
        model, drafter = models[0]
        more: dict[str, Any] = {"ranks": world.ranks[0], "captured": plan.captured, "drafter": drafter}
        self.driver = ArDriver(model, world.devices[0], plan.options, **more)
        self.followers: list[FollowerWorker] = []
        for (model, drafter), device, own in zip(models[1:], world.devices[1:], world.ranks[1:], strict=True):
            with torch.inference_mode():
                runner, _, _ = small_runner(
                    model, device, plan.options, ranks=own, captured=plan.captured, drafter=drafter
                )
            device.synchronize()
            self.followers.append(FollowerWorker("text", runner, own))
        for device in world.devices:
            assert isinstance(device, RaisingDevice)
            device.fails = plan.fails
        self._asked = 0

    def _model(self, rank: int) -> tuple[ArModel, Drafter | None]:
        """The model of a rank, and its drafter."""
        plan, own = self.scenario, self.world.ranks[rank].tensor
        layout, make = plan.layout, KINDS[plan.kind].make
        model = range_of(make, layout.position(rank), layout.pipeline, communicator=own)
        return model, small_drafter(model, plan.options)

    def _alone(self, ask: SimulatedRequest) -> Any:
        """A request's results of the whole model."""
        return alone(self.scenario.kind, ask)

    def run(self) -> None:
        """To the end of all requests. Raises whatever goes wrong."""
        plan, driver = self.scenario, self.driver
        simulation = self.world.simulation([self._lead, *(self._follow(each) for each in self.followers)], self._idle)
        for index, (at, ask) in enumerate(plan.asks):
            simulation.at(at, lambda index=index, ask=ask: self._ask(str(index), ask))  # type: ignore[misc]
        for index, at in plan.leaves.items():
            simulation.at(at, lambda index=index: self._leave(str(index)))  # type: ignore[misc]
        for index, (start, end) in plan.rests.items():
            simulation.at(start, lambda index=index: self._rest(str(index), True))  # type: ignore[misc]
            simulation.at(end, lambda index=index: self._rest(str(index), False))  # type: ignore[misc]
        simulation.run()
        for index, (_, ask) in enumerate(plan.asks):
            self._check(str(index), ask)
        assert not driver.held
        self.counters |= Counter(driver.worker.counters())
        self.world.assert_no_races()

    def _check(self, name: str, ask: SimulatedRequest) -> None:
        """A request has the results that it has alone. It fails only if a step of it alone does, by intention."""
        end, got = self.driver.ends.get(name), KINDS[self.scenario.kind].got(self.driver, name)
        if ask.wrong:
            assert isinstance(end, Failed), end
            assert not self.driver.tokens(name)
            return
        expected = self._alone(ask)
        if isinstance(end, Failed):
            self.counters["failed"] += 1
            assert self.scenario.fails, end
            assert "ValueError: broken" in str(end.error)
            got, expected = got[0], expected[0][: len(got[0])]
        if end is not None:
            assert got == expected, f"request {name}: {ask} gets {got}, and alone {expected}"

    def _ask(self, name: str, ask: SimulatedRequest) -> None:
        self._asked += 1
        KINDS[self.scenario.kind].ask(self.driver, name, ask)

    def _leave(self, name: str) -> None:
        if name not in self.driver.ends:
            self.counters["aborts"] += 1
            self.driver.abort(name)

    def _rest(self, name: str, rests: bool) -> None:
        if name in self.driver.worker.requests:
            (self.driver.pause if rests else self.driver.resume)(name)

    def _lead(self) -> bool:
        return self.driver.tick() | self.driver.gather()

    def _follow(self, worker: FollowerWorker) -> Callable[[], bool]:
        def tick() -> bool:
            with torch.inference_mode():
                return worker.tick()

        return tick

    def _idle(self) -> bool:
        open_ones = self._asked - len(self.driver.ends) - self.counters["aborts"]
        followers = any(any(each.usage().values()) for each in self.followers)
        return not (open_ones or self.driver.lent or self.driver.held or followers)


StageT = TypeVar("StageT", bound=SimulatedStage)


def run_seed(
    seed: int,
    tensor: int = 1,
    pipeline: int | None = None,
    plan: Callable[[int, int, int | None], Scenario] = Scenario.of,
    **removal: Any,
) -> SimulatedStage:
    """tensor, pipeline: of `plan`. removal: of `SimulatedRanks`. Raises whatever goes wrong."""
    return run(plan(seed, tensor, pipeline), seed, **removal)


def run(plan: Scenario, seed: int, **removal: Any) -> SimulatedStage:
    """As `run_seed`."""
    return run_kind(SimulatedStage, plan, seed, **removal)


def run_kind(kind: type[StageT], plan: Scenario, seed: int, **removal: Any) -> StageT:
    """As `run_seed`, of a kind of stage."""
    world = SimulatedRanks(plan.layout, seed, device=RaisingDevice, **removal)
    try:
        stage = kind(plan, world)
        stage.run()
    except Exception as error:
        error.add_note(f"seed {seed}: {plan}")
        raise
    finally:
        world.close()
    return stage
