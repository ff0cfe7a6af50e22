"""An engine that takes users' requests, and runs them to their ends."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from typing import Any

from omni.engine import EngineRequest
from omni.frontend.base import Chat, Frontend, Message, TextPart
from omni.frontend.build import build_frontend
from omni.sampling import SamplingParams
from omni.testing.engines.result import EngineResult
from omni.testing.engines.ticked import TickedEngine
from omni.testing.simulation.device import SimulatedDevice

PATIENCE_SECONDS = 60.0
"""Maximum seconds without progress while requests are under way."""
SETTLE_SECONDS = 2.0
"""Grace period after the last request, in seconds; resources held afterwards are leaks."""

PromptLike = str | Chat | EngineRequest
"""A request: a text, greedy; a chat; or one that is prepared."""

_numbers = count(1)


class PipelineEngine(TickedEngine):
    """Runs requests through the family's front end and stages. Arguments as of `TickedEngine`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._results: list[EngineResult] = []

    @cached_property
    def frontend(self) -> Frontend:
        """The front end of the pipeline's family."""
        return build_frontend(self.plan.pipeline, self.checkpoint)

    def request(self, asked: PromptLike, sampling: SamplingParams | None = None) -> EngineRequest:
        """A text or a chat as the engine takes it. Raises the front end's errors.

        sampling: of a text, at the stage that samples first; greedy by default.
        """
        if isinstance(asked, EngineRequest):
            return asked
        if isinstance(asked, str):
            stage, modalities = (
                self.plan.pipeline.main_stage,
                {each.modality for each in self.plan.pipeline.outputs if each.default},
            )
            params = {} if stage is None else {stage: sampling or SamplingParams(temperature=0.0)}
            asked = Chat((Message("user", (TextPart(asked),)),), frozenset(modalities), None, params)
        prepared = self.frontend.prepare(asked)
        return EngineRequest(
            f"test-{next(_numbers)}",
            asked.modalities,
            prepared.inputs,
            edges=prepared.edges,
            sampling=asked.sampling,
            cache_salt=asked.cache_salt,
        )

    def start(self, asked: PromptLike, sampling: SamplingParams | None = None) -> EngineResult:
        """Submits a request. Its result fills while the engine is ticked."""
        self._results.append(EngineResult())
        self.engine.submit(self.request(asked, sampling), self._results[-1].take)
        return self._results[-1]

    def answer(self, asked: PromptLike, sampling: SamplingParams | None = None) -> EngineResult:
        """Runs one request alone. Raises its error."""
        (result,) = self.run([self.request(asked, sampling)])
        if result.error is not None:
            raise result.error
        return result

    def run(
        self,
        requests: Sequence[PromptLike],
        arrivals: Sequence[int] | None = None,
        departures: Mapping[int, int] | None = None,
    ) -> list[EngineResult]:
        """Runs requests until all are finished. Raises AssertionError if a stage then holds resources.

        Request i joins before tick `arrivals[i]`, all at the start by default, and is aborted before tick `departures[i]`
        if that is there: its result's error is then `GIVEN_UP`. On a simulated device the ticks are rounds of its
        simulation, and races are errors.
        """
        prepared = [self.request(each) for each in requests]
        if len({each.id for each in prepared}) < len(prepared):
            prepared = [replace(each, id=f"{each.id}-{index}") for index, each in enumerate(prepared)]
        results = [EngineResult() for _ in prepared]
        self._results += results
        actions: list[tuple[int, Callable[[], object]]] = []
        for index, (each, result) in enumerate(zip(prepared, results, strict=True)):
            actions.append((arrivals[index] if arrivals else 0, partial(self.engine.submit, each, result.take)))
        actions += [(tick, partial(self.leave, prepared[index].id)) for index, tick in (departures or {}).items()]
        actions.sort(key=lambda action: action[0])
        if isinstance(self.device, SimulatedDevice) and self.device.schedule is not None:
            simulation = self.simulate()
            for tick, act in actions:
                simulation.at(tick, act)
            simulation.run()
            self.device.assert_no_races()
        else:
            self._play(actions)
        self.assert_free()
        return results

    def settle(self) -> None:
        """Raises AssertionError if all requests are finished and stages still hold resources."""
        if all(result.finished for result in self._results):
            self._tick_until(lambda: self.engine.idle)
            self.assert_free()

    def _play(self, actions: list[tuple[int, Callable[[], object]]]) -> None:
        tick = 0

        def finished() -> bool:
            nonlocal tick
            while actions and actions[0][0] <= tick:
                actions.pop(0)[1]()
            tick += 1
            return not actions and self.engine.idle

        self._tick_until(finished)

    def _tick_until(self, finished: Callable[[], bool]) -> None:
        """Or until all requests are finished, and no further progress occurs."""
        since = time.monotonic()
        while not finished():
            if self.tick():
                since = time.monotonic()
            else:
                time.sleep(0)  # threads of host work need the interpreter's lock
            quiet = time.monotonic() - since
            if quiet > SETTLE_SECONDS and all(result.finished for result in self._results):
                return
            held = f"nothing moves, and requests are not finished: the stages hold {self.engine.usage()}"
            assert quiet < PATIENCE_SECONDS, held
