"""Plays one cell of the matrix: requests that join and leave while others run, on a device that is late."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)

from omni.engine import Engine
from omni.frontend.vocabulary import Vocabulary
from omni.sampling import GREEDY as GREEDY_DEFAULTS
from omni.sampling import HostLogitsProcessor, SamplingParams
from omni.testing import SimulatedDevice
from omni.testing.engines import GIVEN_UP
from omni.testing.simulation.late import LateDevice
from omni_ar.sampling.rng import gumbel
from tests.plugins.cut_stages import CutStages
from tests.plugins.matrix import GREEDY, SEEDED, Cell, Family
from tests.support.received import Received
from tests.support.sampler_bench import reference_logits, reference_warp

_NEVER = 10**9
"""More tokens than there are: a request that waits for so many joins when the others are over."""


@dataclass(frozen=True, slots=True)
class CellRequest:
    """asked: name of its parameters. joins: when all that came before have said so many tokens, or are over. leaves: after so
    many of its own."""

    asked: str
    prompt: int
    joins: int = 0
    leaves: int | None = None
    sample_index: int = 0


@dataclass(slots=True)
class Played:
    """received: by request. counters: by stage. most: steps that a stage had in flight at once, the most there were."""

    received: list[Received]
    counters: Mapping[str, Mapping[str, int]]
    most: Counter[str]

    def preemptions(self, family: Family) -> dict[str, int]:
        """By autoregressive stage."""
        return {stage: self.counters[stage]["preemptions"] for stage in family.stages}


@dataclass(slots=True)
class _Party:
    family: Family
    engine: Engine
    asks: Sequence[CellRequest]
    received: list[Received] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)
    left: set[int] = field(default_factory=set)

    def tick(self) -> bool:
        moved = self._join() | self._leave()
        moved |= self.engine.tick()
        if moved:
            for stage, usage in self.engine.usage().items():
                self.most[stage] = max(self.most[stage], usage.get("steps", 0))
        return moved

    @property
    def idle(self) -> bool:
        return len(self.received) == len(self.asks) and self.engine.idle

    def _join(self) -> bool:
        said = sum(len(one.tokens) for one in self.received)
        joined = False
        while len(self.received) < len(self.asks):
            number = len(self.received)
            ask = self.asks[number]
            if said < ask.joins and not self.engine.idle:
                break
            self.received.append(Received())
            request = self.family.request(ask.asked, ask.prompt, str(number), ask.sample_index)
            self.engine.submit(request, self.received[number].take)
            joined = True
            if ask.joins:
                break
        return joined

    def _leave(self) -> bool:
        leaving = [
            number
            for number, (ask, one) in enumerate(zip(self.asks, self.received, strict=False))
            if ask.leaves is not None and len(one.tokens) >= ask.leaves and not one.finished and number not in self.left
        ]
        for number in leaving:
            self.left.add(number)
            self.engine.abort(str(number), GIVEN_UP)
        return bool(leaving)


def party(asked: str) -> list[CellRequest]:
    """Most requests with the cell's parameters stay and some leave; others have fewer parameters. Some repeat a prompt."""
    return [
        CellRequest(asked, 0),
        CellRequest(GREEDY, 1),
        CellRequest(asked, 2, joins=1),
        CellRequest(asked, 3, joins=3, leaves=3),
        CellRequest(SEEDED, 3, joins=6),
        CellRequest(asked, 1, joins=10),
        CellRequest(GREEDY, 4, joins=12, leaves=6),
        CellRequest(asked, 4, joins=16),
        CellRequest(asked, 3, joins=34),
        CellRequest(SEEDED, 1, joins=45),
        CellRequest(asked, 2, joins=60),
    ]


def small_party(asked: str) -> list[CellRequest]:
    """The same of fewer, for a family of several stages."""
    return [
        CellRequest(asked, 2),
        CellRequest(GREEDY, 1),
        CellRequest(asked, 3, joins=1, leaves=3),
        CellRequest(asked, 0, joins=3),
        CellRequest(SEEDED, 4, joins=6),
        CellRequest(asked, 1, joins=10),
        CellRequest(SEEDED, 1, joins=40),
    ]


def play(
    family: Family,
    settings: Mapping[str, object],
    asks: Sequence[CellRequest],
    device: SimulatedDevice,
    cut: CutStages | None = None,
) -> Played:
    """Runs all of them to their ends. At the end nothing is held. cut: the stages on several ranks, which are then equal."""
    with torch.inference_mode():
        engine = family.engine(device, settings, cut)
        device.synchronize()
        group = _Party(family, engine, asks)
        _run(group, device)
        held = {name: {k: n for k, n in usage.items() if n} for name, usage in engine.usage().items()}
        assert not any(held.values()), held
        counters = engine.counters()
        if cut is not None:
            cut.end()
        engine.close()
    return Played(group.received, counters, group.most)


def _run(group: _Party, device: SimulatedDevice) -> None:
    """Whenever the host is idle, one or a few pending launches complete on the device."""
    assert device.schedule is not None
    chance = device.schedule.random
    while not group.idle:
        if group.tick():
            continue
        ran = [device.skip() for _ in range(chance.randrange(1, 12))]
        # What is over by now may be what was asked for a moment ago.
        assert any(ran) or group.tick() or group.idle, f"stuck with {group.engine.usage()}"


def check(family: Family, cell: Cell, asks: Sequence[CellRequest], played: Played, batches: int = 1) -> None:
    """Every request had the results that it has alone, and the cell's conditions held. batches: `Limits.micro_batches`."""
    for number, (ask, received) in enumerate(zip(asks, played.received, strict=True)):
        try:
            assert received.finished
            received.assert_like(family.alone(ask.asked, ask.prompt, ask.sample_index))
        except AssertionError as error:
            error.add_note(f"request {number}: {ask} in {cell}, device seed {cell.seed}")
            raise
    assert any(one.error is GIVEN_UP for one in played.received)
    preemptions = played.preemptions(family)
    assert (preemptions[family.writer] > 0) == cell.few_blocks, f"{preemptions} preemptions"
    # Scored prompts do not read the cache, and with few blocks the prefixes of others are soon evicted.
    hits = cell.cached and not (cell.few_blocks and cell.asked == "prompt logprobs")
    for stage in family.stages:
        cached = played.counters[stage]["cached_tokens"]
        assert cached == 0 or cell.cached
        assert cached > 0 or not hits or stage != family.writer, "nothing was found in the cache"
        assert preemptions[stage] == 0 or cell.few_blocks
        # The conditioning of the talker's steps is late now and then, but always there for two steps.
        least = cell.in_flight if stage == family.writer else min(cell.in_flight, 2)
        most = cell.in_flight + batches - 1
        assert least <= played.most[stage] <= most, f"{stage}: {played.most[stage]} steps in flight at most"


def run_cell(
    family: Family,
    cell: Cell,
    cut: CutStages | None = None,
    *,
    settings: Mapping[str, object] = {},
    again: bool = False,
) -> Played:
    """settings: besides those of the cell. again: whether all ask once more when the first ones are over."""
    asks = (small_party if len(family.stages) > 1 else party)(cell.asked)
    if again:
        asks += [replace(ask, joins=0 if number else _NEVER) for number, ask in enumerate(asks)]
    settings = {**cell.settings(family.few(cell.asked)), **settings}
    played = play(family, settings, asks, LateDevice(cell.seed), cut)
    check(family, cell, asks, played, cut.batches if cut is not None else 1)
    return played


# What transformers makes of the matrix's parameters: its own processors and warpers, and behind them the engine's noise.
#
# Host rules of a text (a grammar, a processor with history) apply in between, by transformers or by our own code.
#
# Shape legend: V vocabulary, W words of 64 ids.


class AsAsked(LogitsProcessor):
    """All effects of the parameters on logits. Under greedy decoding, the largest logit is drawn.

    params: in ids, of the request over its stage's own. start: ids that stand before the first generated one.
    """

    def __init__(
        self,
        params: SamplingParams,
        start: int,
        host_processors: Sequence[HostLogitsProcessor] = (),
        sample_index: int = 0,
    ) -> None:
        self._params = params.with_defaults(GREEDY_DEFAULTS)
        self._start = start
        self._processors = host_processors
        self._sample_index = torch.tensor([sample_index])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        params, ids = self._params, input_ids[0].tolist()
        outputs = ids[self._start :]
        logits_V = reference_logits(scores[0], params, ids[: self._start], outputs)
        for processor in self._processors:
            allowed_W = processor.edit().allowed
            assert allowed_W is not None
            logits_V[~_bits(allowed_W, len(logits_V))] = -torch.inf
        for args in (params.processors or {}).values():
            size = args["size"]
            assert isinstance(size, int)
            ids_1T = torch.tensor([outputs], dtype=torch.int64)
            logits_V = NoRepeatNGramLogitsProcessor(size)(ids_1T, logits_V[None])[0]
        if params.temperature:
            assert params.seed is not None
            position = torch.tensor([len(outputs)])
            noise_V = gumbel(torch.tensor([params.seed]), self._sample_index, position, 0, 0, len(logits_V))[0]
            logits_V = reference_warp(logits_V, params) + noise_V
        return logits_V[None]


class Complete(StoppingCriteria):
    """Gives each token to the host processors, and ends where one of them does."""

    def __init__(self, host_processors: Sequence[HostLogitsProcessor]) -> None:
        self._processors = host_processors

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        over = [processor.push(int(input_ids[0, -1])) for processor in self._processors]
        return torch.tensor([any(over)])


def arguments(
    params: SamplingParams, start: int, host_processors: Sequence[HostLogitsProcessor] = (), sample_index: int = 0
) -> Mapping[str, Any]:
    """Of `generate`, but for what ends it by ids."""
    assert params.max_tokens is not None
    return {
        "max_new_tokens": params.max_tokens,
        "do_sample": False,
        "logits_processor": LogitsProcessorList([AsAsked(params, start, host_processors, sample_index)]),
        "stopping_criteria": StoppingCriteriaList([Complete(host_processors)] if host_processors else []),
    }


def generated(model: Any, prompt: Sequence[int], ends: Sequence[int], given: Mapping[str, Any]) -> list[int]:
    """The model's tokens. ends: ids that end them."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), eos_token_id=list(ends), pad_token_id=ends[0], **given
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def cut(tokens: Sequence[int], stops: Sequence[str], vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """Given out and held back of tokens whose text ends with the first of `stops`: by trying every place."""
    texts = [stop.encode() for stop in stops]
    for count in range(1, len(tokens) + 1):
        written = [vocabulary.written(token) for token in tokens[:count]]
        text = b"".join(written)
        found = [(place + len(stop), place) for stop in texts if (place := text.find(stop)) >= 0]
        if found:
            begins = min(found)[1]
            given = next(n for n in range(count) if sum(map(len, written[: n + 1])) > begins)
            return list(tokens[:given]), list(tokens[given:count])
    return list(tokens), []


def _bits(words_W: Any, count: int) -> Tensor:
    """bool `[count]`: bit i of word w is id 64 * w + i; ids after the last word are out."""
    bits = np.unpackbits(words_W.view(np.uint8), bitorder="little")[:count]
    return torch.from_numpy(np.pad(bits, (0, count - len(bits)))).bool()
