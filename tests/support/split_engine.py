"""A pipeline in two engines on one device, presented as one engine. A seed decides which one ticks, and when messages arrive."""

import itertools
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from omni.checkpoint import Checkpoint
from omni.config import SettingsLayer
from omni.device import Device
from omni.engine import (
    Engine,
    EngineOptions,
    EngineOutput,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    Sink,
    StageFinished,
    build_engine,
    resolve_pipeline,
)
from omni.engine.command_queue import LocalCommandQueue
from omni.engine.placement import Placement
from omni.engine.request import AbortRequest, ConnectPeer, EngineCommand, SafeSink, SubmitRequest
from omni.errors import OmniError, StageError
from omni.plugin.manager import Plugins
from omni.stage import StageUsage
from tests.support.two_engines import HERE, THERE, MemoryLink

_LONGEST_PAUSE = 20
"""Rounds in a row without an engine."""
_SETTLED = 4
"""Rounds without an event after which no engine pauses: what hangs now does not wait for an engine's turn."""
_OVER = StageError("request", "ending it", "its outputs were given")


class LateCommandQueue(LocalCommandQueue):
    """Commands arrive later than they are put, in order. chance: None for at once."""

    def __init__(self, chance: random.Random | None) -> None:
        super().__init__()
        self._chance = chance
        self._under_way: deque[EngineCommand] = deque()

    def put(self, command: EngineCommand) -> None:
        self._under_way.append(command)

    def take(self) -> Sequence[EngineCommand]:
        count = len(self._under_way)
        if self._chance is not None:
            count = self._chance.randint(1, count) if count and self._chance.random() < 0.1 else 0
        return [self._under_way.popleft() for _ in range(count)]

    @property
    def waiting(self) -> bool:
        return bool(self._under_way)


@dataclass(slots=True, eq=False)
class _Split:
    """A request. parts: places whose engines have not ended it. awaited: stages with a wanted output that are not done."""

    request: EngineRequest
    sink: SafeSink
    parts: set[str]
    awaited: set[str]
    finished: bool = False


@dataclass(slots=True)
class _Placed:
    engine: Engine
    command_queue: LateCommandQueue
    link: MemoryLink
    pause: int = 0
    """Rounds that it does not tick."""
    errors: list[OmniError | None] = field(default_factory=list)
    """The state of its connection, as reported."""


class SplitEngine:
    """As `omni.process.EngineGroup`, in one thread.

    settings: with the places of stages, `HERE` and `THERE`. chance: None ticks both engines in each round, and nothing
    is late.
    """

    def __init__(
        self,
        folder: Path,
        plugins: Plugins,
        settings: Mapping[str, object],
        device: Device,
        chance: random.Random | None = None,
    ) -> None:
        checkpoint = Checkpoint(folder)
        plan = resolve_pipeline(checkpoint, plugins, [SettingsLayer("test", settings)])
        self._pipeline = plan.pipeline
        self._placement = Placement.of(plan.pipeline, HERE)
        self._chance: random.Random | None = None
        self._quiet = 0
        self._numbers = itertools.count(1)
        self._requests: dict[str, _Split] = {}
        options = EngineOptions(dtype="float32", device=HERE, graphs=True)
        self._placed: dict[str, _Placed] = {}
        for place, link in zip((HERE, THERE), MemoryLink.pair(), strict=True):
            command_queue = LateCommandQueue(chance)
            engine = build_engine(plan, checkpoint, plugins, device, options, command_queue=command_queue, place=place)
            self._placed[place] = _Placed(engine, command_queue, link)
        self._connect()
        self._chance = chance

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        number = next(self._numbers)
        stages = self._pipeline.active(request.modalities, request.inputs)
        places = self._placement.place_request(self._pipeline, stages, {})
        parts = set(places.values())
        wanted = {output.stage for output in self._pipeline.outputs if output.modality in request.modalities}
        split = _Split(request, SafeSink(request.id, sink), parts, wanted)
        split.request = replace(request, number=number, places=places if len(parts) > 1 else {})
        self._requests[request.id] = split
        for place in dict.fromkeys(places.values()):
            inputs = {stage: given for stage, given in request.inputs.items() if places.get(stage) == place}
            part = replace(split.request, inputs=inputs)
            command = SubmitRequest(part, SafeSink(request.id, partial(self._take, split, place)))
            self._placed[place].command_queue.put(command)

    def abort(self, request_id: str, error: OmniError) -> None:
        split = self._requests.get(request_id)
        if split is not None:
            self._abort_parts(split, error)

    def tick(self) -> bool:
        """Returns whether anything happened, or is on its way."""
        moves = [placed.engine.tick() for placed in self._order()]
        engines = self._placed.values()
        moved = any(moves) or any(
            placed.command_queue.waiting or placed.link.waiting or placed.link.unsent for placed in engines
        )
        self._quiet = 0 if moved else self._quiet + 1
        return moved

    @property
    def idle(self) -> bool:
        return not self._requests and all(
            placed.engine.idle and not placed.link.waiting for placed in self._placed.values()
        )

    def usage(self) -> Mapping[str, StageUsage]:
        return {stage: usage for placed in self._placed.values() for stage, usage in placed.engine.usage().items()}

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {stage: counts for placed in self._placed.values() for stage, counts in placed.engine.counters().items()}

    def close(self) -> None:
        for placed in self._placed.values():
            placed.engine.close()

    def _connect(self) -> None:
        for place, other in ((HERE, THERE), (THERE, HERE)):
            placed = self._placed[place]
            placed.command_queue.put(ConnectPeer(other, placed.link, placed.errors.append))
        while not all(placed.errors for placed in self._placed.values()):
            with torch.inference_mode():
                self.tick()
        for placed in self._placed.values():
            assert placed.errors == [None]

    def _order(self) -> Sequence[_Placed]:
        """The engines that tick in this round, in order, and what reaches them."""
        engines, chance = list(self._placed.values()), self._chance
        if chance is None:
            return engines
        chance.shuffle(engines)
        for placed in engines:
            placed.pause = placed.pause - 1 if placed.pause else chance.choice((0, 0, 0, 1, 3, _LONGEST_PAUSE))
            placed.pause *= self._quiet < _SETTLED
            placed.link.stuck = chance.random() < 0.3
            placed.link.most = chance.choice((None, None, 0, 1, 2))
        return [placed for placed in engines if not placed.pause]

    def _take(self, split: _Split, place: str, output: EngineOutput) -> None:
        if split.finished:
            return
        match output:
            case StageFinished(stage=stage):
                split.sink.give(output)
                split.awaited.discard(stage)
                if len(split.parts) > 1 and not split.awaited:
                    self._finish(split, RequestFinished())
            case RequestFinished():
                split.parts.discard(place)
                if not split.parts:
                    self._finish(split, output)
            case RequestFailed():
                split.parts.discard(place)
                self._finish(split, output)
            case _:
                split.sink.give(output)

    def _finish(self, split: _Split, output: RequestFinished | RequestFailed) -> None:
        split.finished = True
        self._abort_parts(split, output.error if isinstance(output, RequestFailed) else _OVER)
        del self._requests[split.request.id]
        split.sink.finish(output)

    def _abort_parts(self, split: _Split, error: OmniError) -> None:
        for place in sorted(split.parts):
            self._placed[place].command_queue.put(AbortRequest(split.request.id, error, split.request.number))
