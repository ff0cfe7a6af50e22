"""Traffic of every kind at once, chosen by a seed: joins, aborts, priorities, few blocks, cache hits, slow consumers, stalls.

With any settings and timing of the device, each request has the results that it has alone, one step at a time.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from omni.connector.pieces import ByteMemory, PayloadLayout
from omni.connector.pool import PoolPiece, PoolReceiver, PoolSender
from omni.connector.pool.sender import Stretch
from omni.device import Device, Event
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest, Sink
from omni.engine.credit import Credit
from omni.engine.peer_messages import ToConsumer
from omni.engine.peers import EdgeEnds
from omni.errors import OmniError
from omni.frontend.base import Chat
from omni.payload import Payload
from omni.plugin import ConnectorEntry
from omni.plugin.manager import Plugins
from omni.sampling import HostRules, SamplingParams
from omni.stage import StageUsage
from omni.testing import SimulatedDevice, Simulation
from omni.testing.engines import GIVEN_UP, TickedEngine
from omni_ar.inputs import StepInputs
from tests.support.ar_driver import plain_prompt
from tests.support.codec_family import SPEAKER, codec_plugins
from tests.support.codec_family import write_checkpoint as write_codec
from tests.support.hidden_family import CLERK, READER, SCRIBE, WRITER, hidden_plugins
from tests.support.hidden_family import write_checkpoint as write_hidden
from tests.support.listener import LISTENER, listener_plugins
from tests.support.listener import ask as ask_listener
from tests.support.listener import write_checkpoint as write_listener
from tests.support.marking_connector import MarkingConnector
from tests.support.omni_engine import OmniEngine
from tests.support.received import Received
from tests.support.reference import chat, picture, sizes, sound, temporary_folder, tiny_checkpoint
from tests.support.small_codec import codec_prompt
from tests.support.small_text import NothingTwice, TwoInARow
from tests.support.split_engine import SplitEngine
from tests.support.two_engines import THERE

# Pipelines under mixed traffic: what can be asked of each, and which settings make it hard.

Knobs = Mapping[str, Sequence[object]]
"""The values of each setting, by dotted path. The first value is the easiest."""

_PAUSES, _CREDIT, _POOL = "pauses", "credit", "pool_bytes"
_WHOLE = 64
"""Payloads, more than a request has."""


class AnyEngine(Protocol):
    """`Engine`, or what stands for several."""

    def submit(self, request: EngineRequest, sink: Sink) -> None: ...

    def abort(self, request_id: str, error: OmniError) -> None: ...

    def tick(self) -> bool: ...

    @property
    def idle(self) -> bool: ...

    def usage(self) -> Mapping[str, StageUsage]: ...

    def counters(self) -> Mapping[str, Mapping[str, int]]: ...

    def close(self) -> None: ...


class World(Protocol):
    """contents: how many different requests there are. Of one content, every request gets the same."""

    @property
    def name(self) -> str: ...

    @property
    def contents(self) -> int: ...

    @property
    def knobs(self) -> Knobs: ...

    def __hash__(self) -> int: ...

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine: ...

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest: ...


def ar_knobs(stage: str, block_size: int, roomy: int, few: int) -> Knobs:
    """Settings of an autoregressive stage. few: blocks, enough for the longest request alone."""
    return {
        f"{stage}.max_in_flight": (1, 2, 4, 8),
        f"{stage}.graph_batch_sizes": ((), None, (1,)),
        f"{stage}.graph_chunk_sizes": ((), None, (3,)),
        f"{stage}.block_size": (block_size,),
        f"{stage}.num_blocks": (roomy, few, few, few + 3),
        f"{stage}.max_num_batched_tokens": (2048, 3, 9),
        f"{stage}.prefix_cache": (True, False),
        f"{stage}.max_num_seqs": (4, 4, 3, 1),
    }


def pooled(settings: Mapping[str, object], *edges: tuple[str, str], connector: str = "shm") -> dict[str, object]:
    """Settings with pools of `_POOL` bytes for edges."""
    options = dict(settings)
    pool_bytes = options.pop(_POOL)
    for producer, consumer in edges:
        edge = f"edges.{producer}-{consumer}"
        options |= {f"{edge}.connector": connector, f"{edge}.pool_bytes": pool_bytes}
    return options


class HiddenWorld:
    """A text model whose every token's hidden state is read by one stage on the device and one in host memory.

    Both keep rows to the end, so the credit of one of their edges must be enough for a whole request: the other edge pauses it.
    """

    name = "hidden"
    knobs: ClassVar[Knobs] = {
        _PAUSES: (CLERK, READER),
        **ar_knobs(WRITER, 4, 100, 9),
        f"{READER}.max_num_seqs": (4, 1),
        f"{READER}.every": (1, 5),
        f"{CLERK}.max_num_seqs": (4, 1),
        f"{CLERK}.every": (1, 7),
    }
    _TOKENS = 12
    _VOCAB = 61
    _SAMPLING: Sequence[Mapping[str, Any]] = (
        {},
        {"temperature": 0.9, "top_k": 20, "seed": 3},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 2},
        {"prompt_logprobs": 1, "bad_words_ids": ((4,), (7, 9))},
        {"stop_token_ids": tuple(range(0, 61, 9)), "min_tokens": 3},
        {"temperature": 1.0, "min_p": 0.02, "seed": 8, "presence_penalty": 0.5},
    )

    _WIDTH = 64

    def __init__(self, folder: Path) -> None:
        credits = {READER: {READER: 4, CLERK: _WHOLE}, CLERK: {READER: _WHOLE, CLERK: 4}}
        self._folders = {
            name: write_hidden(folder / name, width=self._WIDTH, readers=(READER, CLERK), credit=credit)
            for name, credit in credits.items()
        }

    @property
    def contents(self) -> int:
        return 12

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        options = dict(settings)
        folder = self._folders[str(options.pop(_PAUSES))]
        return TickedEngine(folder, hidden_plugins(), options, device, graphs=True).engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        length = (1, 4, 9, 17, 12, 21)[content % 6]
        ids = [(5 * p + (p > 7) * content) % self._VOCAB for p in range(length)]  # many begin alike
        prompt = plain_prompt(ids, payload_positions=np.arange(0, length, 3))
        return EngineRequest(
            request_id,
            frozenset({"text", "read", "filed"}),
            {WRITER: [Payload(prompt)]},
            sampling={WRITER: SamplingParams(max_tokens=self._TOKENS, **self._SAMPLING[content // 2])},
            priority=priority,
            rules=self._rules(content),
        )

    def _rules(self, content: int) -> Mapping[str, HostRules]:
        if content % 4 == 3:
            return {WRITER: HostRules(host_processors=(NothingTwice(self._VOCAB, most=10),))}
        if content % 4 == 2:
            return {WRITER: HostRules(stops=TwoInARow(frozenset(range(0, self._VOCAB, 2))))}
        return {}


class PooledWorld(HiddenWorld):
    """The same through pools of shared memory. A small one holds three rows of hidden states, each of two pieces; a larger
    one holds six, of one piece each."""

    name = "pooled"
    knobs: ClassVar[Knobs] = {**HiddenWorld.knobs, _POOL: (2**17, 2**16)}
    _WIDTH = 5000

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        """The expected results are those of an engine without pools."""
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, {name: value for name, value in settings.items() if name != _POOL})
        return super().engine(device, pooled(settings, (WRITER, READER), (WRITER, CLERK)))


class ApartWorld(PooledWorld):
    """The writer in one engine and its readers in another."""

    name = "apart"
    _CONNECTOR = "shm"

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, settings)
        assert device.schedule is not None
        options = {
            **pooled(settings, (WRITER, READER), (WRITER, CLERK), connector=self._CONNECTOR),
            f"{READER}.place": THERE,
            f"{CLERK}.place": THERE,
        }
        folder = self._folders[str(options.pop(_PAUSES))]
        return SplitEngine(folder, self._plugins(), options, device, device.schedule.random)

    def _plugins(self) -> Plugins:
        return hidden_plugins()


class MarkedWorld(ApartWorld):
    """The same through pools with a board of copied pieces, as `cuda_ipc` has one: pieces arrive before their copies have run."""

    name = "marked"
    _CONNECTOR = "marking"

    def _plugins(self) -> Plugins:
        plugins = super()._plugins()
        path = f"{MarkingConnector.__module__}:{MarkingConnector.__qualname__}"
        entry = ConnectorEntry(name=self._CONNECTOR, connector=path)
        entries = {**plugins.connectors.entries, self._CONNECTOR: entry}
        return replace(plugins, connectors=replace(plugins.connectors, entries=entries))


class TokensWorld(HiddenWorld):
    """The writer in one engine; in another a slow scribe, which is given tokens only: payloads without tensors."""

    name = "apart tokens"
    knobs: ClassVar[Knobs] = {
        **ar_knobs(WRITER, 4, 100, 11),
        f"{WRITER}.max_in_flight": (1, 2),
        f"{SCRIBE}.max_num_seqs": (4, 1),
        f"{SCRIBE}.every": (2, 4),
        f"{SCRIBE}.payloads_per_read": (1,),
    }
    CREDIT = 3
    _TOKENS = 20

    def __init__(self, folder: Path) -> None:
        self._folder = write_hidden(folder, readers=(SCRIBE,), credit=self.CREDIT)

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        if not isinstance(device, SimulatedDevice):
            return TickedEngine(self._folder, hidden_plugins(), settings, device, graphs=True).engine
        assert device.schedule is not None
        options = {**settings, f"{SCRIBE}.place": THERE}
        return SplitEngine(self._folder, hidden_plugins(), options, device, device.schedule.random)

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        return replace(super().request(content, request_id, priority), modalities=frozenset({"text", "noted"}))


class CodecWorld:
    """A talker with conditioning, whose frames two vocoders take on the device and a clerk in host memory."""

    name = "codec"
    knobs: ClassVar[Knobs] = {
        **ar_knobs(SPEAKER, 3, 100, 10),
        "voice.max_num_seqs": (3, 1),
        "voice.chunk_frames": (3, 1),
        "voice.graph_batch_sizes": ((), None, (1,)),
        "echo.max_num_seqs": (3, 1, 1),
        "clerk.every": (1, 6),
    }

    def __init__(self, folder: Path) -> None:
        self._folder = write_codec(folder, credit=5)

    @property
    def contents(self) -> int:
        return 10

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        return TickedEngine(self._folder, codec_plugins(), settings, device, graphs=True, scheduling="fixed").engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        length = (1, 4, 9, 14, 6)[content % 5]
        late = [(p > 5) * content for p in range(length)]
        prompt = codec_prompt(
            [(3 * p + n) % 23 for p, n in enumerate(late)], [(5 * n + p * p) % 37 for p, n in enumerate(late)]
        )
        texts = np.array([[(content + step * step) % 23 for step in range(6)]], np.int64)
        steps = StepInputs(columns=texts, pad=np.array([2], np.int64))
        sampled: Mapping[str, Any] = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": 11}
        sampling = SamplingParams(max_tokens=15, **(sampled if content == 6 else {}))  # costs much
        return EngineRequest(
            request_id,
            frozenset({"codes", "audio", "echo", "filed"}),
            {SPEAKER: [Payload(prompt), Payload(steps)]},
            sampling={SPEAKER: sampling},
            priority=priority,
        )


class PooledCodecWorld(CodecWorld):
    """The same through pools: payloads arrive before they are ready."""

    name = "pooled codec"
    knobs: ClassVar[Knobs] = {**CodecWorld.knobs, _POOL: (2**16,)}

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        """The expected results are those of an engine without pools."""
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, {name: value for name, value in settings.items() if name != _POOL})
        return super().engine(device, pooled(settings, *((SPEAKER, to) for to in ("voice", "echo", "clerk"))))


class ListenerWorld:
    """A text model, and one whose steps are conditioned by its hidden states: they never visit the host."""

    name = "listener"
    knobs: ClassVar[Knobs] = {
        **ar_knobs(WRITER, 4, 100, 8),
        **ar_knobs(LISTENER, 3, 100, 10),
        _CREDIT: (_WHOLE, 4, 1),
    }
    _TOKENS = 14

    def __init__(self, folder: Path) -> None:
        credits: Sequence[int] = (_WHOLE, 4, 1)
        self._folders = {credit: write_listener(folder / str(credit), credit) for credit in credits}

    @property
    def contents(self) -> int:
        return 10

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        options = dict(settings)
        folder = self._folders[int(str(options.pop(_CREDIT)))]
        return TickedEngine(folder, listener_plugins(), options, device, graphs=True).engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        length, answers = (1, 4, 9, 3, 6)[content % 5], (self._TOKENS, 9, 18)[content % 3]
        written = [(5 * p + (p > 5) * content) % 61 for p in range(length)]  # many begin alike
        heard = [(7 * p + (p > 3) * content) % 53 for p in range(2 + length)]
        sampled: Mapping[str, Any] = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": 11}
        rules = HostRules(stops=TwoInARow(frozenset(range(0, 61, 2)))) if content % 4 == 2 else None
        return ask_listener(
            request_id,
            written,
            heard,
            from_frontend=content % 2 == 1,
            priority=priority,
            sampling={
                WRITER: SamplingParams(max_tokens=self._TOKENS, **(sampled if content % 4 == 1 else {})),
                LISTENER: SamplingParams(max_tokens=answers, **(sampled if content % 4 == 3 else {})),
            },
            rules=rules,
        )


class OmniWorld:
    """The tiny Qwen3-Omni, with media, text and sound."""

    name = "omni"
    _scheduling = "fixed"
    knobs: ClassVar[Knobs] = {
        **ar_knobs("thinker", 4, 100, 10),
        **ar_knobs("talker", 4, 100, 13),
        "code2wav.max_num_seqs": (4, 1),
        "code2wav.first_chunk_frames": (10, 2),
        "code2wav.chunk_frames": (25, 5),
    }
    _CHATS: Sequence[Chat] = (
        chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
        chat("hello there", max_text=12, max_codes=30),
        chat(picture(40, 40, 3), "x", max_text=3, max_codes=6),
        chat("bye", max_text=2, max_codes=4),
        chat("what is it", sound(0.5, 1), voice=None, max_text=8, thinker=SamplingParams(logprobs=2)),
        chat("hello there", voice="aiden", max_text=6, max_codes=9, talker=SamplingParams(temperature=0.9, seed=4)),
    )

    @property
    def contents(self) -> int:
        return len(self._CHATS)

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        return OmniEngine(self._folder, settings, device, scheduling=self._scheduling).engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        return replace(self._prepared[content], id=request_id, priority=priority)

    @cached_property
    def _folder(self) -> Path:
        return tiny_checkpoint(**sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0))

    @cached_property
    def _prepared(self) -> Sequence[EngineRequest]:
        with torch.inference_mode():
            engine = OmniEngine(self._folder)
            return [engine.request(asked) for asked in self._CHATS]


class SlackWorld(OmniWorld):
    """The same scheduled by the slack of listeners. The expected results are those of an engine without."""

    name = "by slack"

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, settings)
        few = {f"{stage}.short_slack_prefill_tokens": 2 for stage in ("thinker", "talker")}
        return OmniEngine(self._folder, {**settings, **few}, device).engine


@cache
def make_world(name: str) -> World:
    """With a checkpoint of its own."""
    if name in (OmniWorld.name, SlackWorld.name):
        return OmniWorld() if name == OmniWorld.name else SlackWorld()
    worlds: dict[str, type[HiddenWorld | CodecWorld | ListenerWorld]] = {
        world.name: world
        for world in (
            HiddenWorld,
            PooledWorld,
            ApartWorld,
            MarkedWorld,
            TokensWorld,
            CodecWorld,
            PooledCodecWorld,
            ListenerWorld,
        )
    }
    return worlds[name](temporary_folder())


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. tick: the round before which it is submitted. leaves: the round before which it is aborted, if it is."""

    id: str
    content: int
    tick: int
    leaves: int | None
    priority: int


@dataclass(frozen=True, slots=True)
class Stall:
    """A stream that stands still for so many seconds from that round on. stream: its number among those that there are."""

    tick: int
    stream: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    settings: Mapping[str, object]
    asks: Sequence[Ask]
    stalls: Sequence[Stall]


@dataclass(frozen=True, slots=True)
class Played:
    """received: by request. counters: totals of all stages, and what else happened, by `HAPPENS`. ticks: rounds that it took."""

    received: Mapping[str, Received]
    counters: Counter[str]
    ticks: int


POOLS = frozenset({"views", "copied pieces", "full pools"})
"""What else is counted where payloads go through pools: those that are read in the pool; pieces that are copied out of it; pieces
that found no room."""
APART = frozenset({"early messages"})
"""And between two engines: messages for a request that has not arrived yet."""
HAPPENS = frozenset({"joins", "aborts", "pauses and resumes", "stalls", "constrained", "scored", "ran ahead"})
"""Counters besides the stages' own totals.

joins, aborts, stalls: while others are there. pauses and resumes: of producers, for slow consumers. constrained: requests that
wait for their host processors, in each round. scored: log-probabilities. ran ahead: rounds with several steps of a stage in flight.
"""


def run_seed(world: World, seed: int, device: SimulatedDevice) -> Played:
    """A seed's traffic: right results, no access out of order. Every error names its seed.

    device: of that seed.
    """
    try:
        plan = scenario(world, seed)
        played = play(world, plan, device)
        check(world, plan, played)
        device.assert_no_races()
    except Exception as error:
        error.add_note(f"world {world.name!r}, seed {seed}: this seed alone does the same again")
        raise
    return played


def scenario(world: World, seed: int, requests: int = 8) -> Scenario:
    chance = random.Random(f"{world.name} {seed}")
    settings = {name: chance.choice(list(values)) for name, values in world.knobs.items()}
    horizon = chance.choice((1, 40, 200))
    favourites = [chance.randrange(world.contents) for _ in range(max(2, requests // 2))]
    asks = []
    for number in range(requests):
        # Half of them ask for what others ask for, too: their prompts are in the cache by then, or on the way.
        content = chance.choice(favourites) if chance.random() < 0.5 else chance.randrange(world.contents)
        tick = chance.randrange(horizon)
        leaves = tick + chance.randrange(1, 150) if chance.random() < 0.2 else None
        asks.append(Ask(str(number), content, tick, leaves, chance.choice((0, 0, 1, 2))))
    stalls = [
        Stall(chance.randrange(horizon + 100), chance.randrange(100), 10 ** chance.uniform(-4, 1))
        for _ in range(chance.choice((0, 0, 2, 6)))
    ]
    return Scenario(settings, asks, stalls)


def play(world: World, plan: Scenario, device: SimulatedDevice) -> Played:
    """Plays it on a simulated device until all work is done. Raises HangError."""
    with torch.inference_mode():
        engine = world.engine(device, plan.settings)
        # Memory that is allocated and filled at the start is complete before the first launch.
        device.synchronize()
        scene = _Scene(world, plan, engine)
        simulation = Simulation(device, scene.tick, lambda: engine.idle, lambda: str(engine.usage()))
        for ask in plan.asks:
            simulation.at(ask.tick, partial(scene.enter, ask), f"submit {ask.id}")
            if ask.leaves is not None:
                simulation.at(ask.leaves, partial(engine.abort, ask.id, GIVEN_UP), f"abort {ask.id}")
        for stall in plan.stalls:
            simulation.at(stall.tick, partial(_stall, device, stall), "stall")
        with _telling(scene.happened):
            simulation.run()
        counters = scene.total()
        engine.close()
    return Played(scene.received, counters, simulation.ticks)


class _Scene:
    """The engine of a scenario. received: by request. happened: the events so far."""

    def __init__(self, world: World, plan: Scenario, engine: AnyEngine) -> None:
        self.received = {ask.id: Received() for ask in plan.asks}
        self.happened: Counter[str] = Counter(stalls=len(plan.stalls))
        self._world = world
        self._engine = engine
        self._entered: list[Received] = []

    def enter(self, ask: Ask) -> None:
        self.happened["joins"] += any(not other.over for other in self._entered)
        self._entered.append(self.received[ask.id])
        self._engine.submit(self._world.request(ask.content, ask.id, ask.priority), self.received[ask.id].take)

    def tick(self) -> bool:
        moved = self._engine.tick()
        for usage in self._engine.usage().values():
            self.happened["ran ahead"] += usage.get("steps", 0) > 1
            self.happened["constrained"] += usage.get("host_processors", 0)
        return moved

    def total(self) -> Counter[str]:
        self.happened["aborts"] += sum(one.error is GIVEN_UP for one in self.received.values())
        self.happened["scored"] += sum(one.scored for one in self.received.values())
        return self.happened + _totals(self._engine)


@contextmanager
def _telling(happened: Counter[str]) -> Iterator[None]:
    """Counts pauses and resumes of producers, and what happens in pools and between engines."""
    report, view, copy = Credit.report, PoolReceiver.views_of, PoolReceiver.copy
    acquire, keep = PoolSender.acquire, EdgeEnds.keep

    def counted(credit: Credit) -> bool:
        news = report(credit)
        happened["pauses and resumes"] += news
        return news

    def viewed(receiver: PoolReceiver, piece: PoolPiece) -> ByteMemory | None:
        seen = view(receiver, piece)
        happened["views"] += seen is not None
        return seen

    def copied(receiver: PoolReceiver, piece: PoolPiece, into: Tensor) -> Event:
        happened["copied pieces"] += 1
        return copy(receiver, piece, into)

    def acquired(sender: PoolSender, stretch: Stretch, layout: PayloadLayout | None, pieces: int) -> PoolPiece | None:
        piece = acquire(sender, stretch, layout, pieces)
        happened["full pools"] += piece is None
        return piece

    def kept(ends: EdgeEnds, place: str, message: ToConsumer) -> None:
        happened["early messages"] += 1
        keep(ends, place, message)

    with (
        patch.object(Credit, "report", counted),
        patch.object(PoolReceiver, "views_of", viewed),
        patch.object(PoolReceiver, "copy", copied),
        patch.object(PoolSender, "acquire", acquired),
        patch.object(EdgeEnds, "keep", kept),
    ):
        yield


def check(world: World, plan: Scenario, played: Played) -> None:
    """Raises AssertionError unless each request had the results that it has alone, or the beginning of them if it was aborted."""
    for ask in plan.asks:
        received = played.received[ask.id]
        assert received.over, f"{ask} has no end"
        assert received.error is not GIVEN_UP or ask.leaves is not None
        try:
            received.assert_like(alone(world, ask.content))
        except AssertionError as error:
            error.add_note(f"{ask} under {plan.settings}")
            raise


@cache
def alone(world: World, content: int) -> Received:
    """The results of a request of that content by itself, on a device that is never late, one step at a time."""
    received = Received()
    with torch.inference_mode():
        engine = _calm(world)
        engine.submit(world.request(content, f"alone {content}", 0), received.take)
        while not engine.idle:
            engine.tick()
    if received.error is not None:
        raise received.error
    return received


@cache
def _calm(world: World) -> AnyEngine:
    device: Device = CpuDevice()
    return world.engine(device, {name: values[0] for name, values in world.knobs.items()})


def _stall(device: SimulatedDevice, stall: Stall) -> None:
    device.stall(device.streams[stall.stream % len(device.streams)].name, stall.seconds)


def _totals(engine: AnyEngine) -> Counter[str]:
    totals: Counter[str] = Counter()
    for counts in engine.counters().values():
        totals.update(counts)
    return totals
