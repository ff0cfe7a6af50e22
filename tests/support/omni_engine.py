"""The engine under test: the family's pipeline with a tap, driven tick by tick."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, open_device
from omni.engine import (
    EngineOutput,
    EngineRequest,
    Plan,
    RequestFailed,
    RequestFinished,
    StageFinished,
    StageOutput,
    check_pipeline,
)
from omni.errors import OmniError
from omni.frontend.base import Chat
from omni.frontend.build import build_frontend
from omni.payload import AudioChunk, GeneratedTokens
from omni.plugin.manager import Plugins
from omni.sampling import SamplingParams
from omni.testing import SimulatedDevice
from omni.testing.engines import GIVEN_UP, TickedEngine
from tests.support.close_calls import Choice, Comparison, WatchedCpu
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plugins import plugins_of
from tests.support.reference import Answer, chat, picture, reference_of, says, sizes, sound, tiny_checkpoint
from tests.support.tap import CodesChunk, with_tap

# Tiny Qwen3-Omnis of different sizes, and requests of every kind, for tests that compare devices.

SHAPES: dict[str, dict[str, Any]] = {
    "as written": sizes(seed=91, stop_gain=0.5, codec_stop_gain=0.5),
    "other sizes": sizes(
        seed=92, layers=4, heads=8, kv_heads=2, head_dim=24, experts=8, top_k=3, accept_hidden_layer=2, groups=8,
        deepstack=(0, 1, 2), stop_gain=0.5, codec_stop_gain=0.5, talker_experts=6, talker_top_k=3, predictor_layers=1,
        upsample_rates=(5, 4),
    ),
}  # fmt: skip
CHATS: list[Chat] = [
    chat(picture(64, 96, 1), sound(1.3, 1), "which is it", max_text=24, max_codes=40),
    chat("hello world", voice="aiden", max_text=16, max_codes=50),
    chat(
        says("system", "be kind"),
        says("user", sound(0.6, 2)),
        says("assistant", "one"),
        says("user", picture(64, 64, 2)),
        voice="chelsie",
        max_text=12,
        max_codes=30,
    ),
    chat(
        "hello",
        sound(0.8, 3),
        max_text=20,
        max_codes=40,
        thinker=SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=1, repetition_penalty=1.1),
        talker=SamplingParams(temperature=0.9, top_k=50, seed=2),
    ),
    chat("only write", picture(32, 64, 3), voice=None, max_text=20),
]


@cache
def in_tree_plugins() -> Plugins:
    """The repository's plugins and the tap, found without an installation."""
    return plugins_of(tap="tests.support.tap")


@dataclass(slots=True)
class Result:
    """The outputs of one request. frames: codes of each codec frame. chunks: waveform pieces in order.

    log: in order, an output's modality or a finished stage's name.
    """

    ids: list[int] = field(default_factory=list)
    frames: list[tuple[int, ...]] = field(default_factory=list)
    chunks: list[NDArray[np.float32]] = field(default_factory=list)
    stages: dict[str, StageFinished] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    error: OmniError | None = None
    finished: bool = False

    @property
    def codes(self) -> Tensor:
        """int64 `[G, frames]`; `[0, 0]` without frames."""
        return torch.tensor(self.frames).T if self.frames else torch.empty(0, 0, dtype=torch.int64)

    @property
    def wave(self) -> NDArray[np.float32]:
        return np.concatenate(self.chunks) if self.chunks else np.empty(0, np.float32)

    @property
    def reasons(self) -> dict[str, str]:
        return {name: finished.reason for name, finished in self.stages.items()}

    def take(self, output: EngineOutput) -> None:
        assert not self.finished, f"{output} after the last message"
        match output:
            case StageOutput(modality=modality, meta=meta):
                self.log.append(modality)
                self._take_chunk(meta)
            case StageFinished():
                self.log.append(output.stage)
                self.stages[output.stage] = output
            case RequestFinished():
                self.finished = True
            case RequestFailed(error=error):
                self.finished, self.error = True, error

    def _take_chunk(self, meta: object) -> None:
        match meta:
            case GeneratedTokens(ids=ids):
                self.ids += ids
            case AudioChunk(samples=samples):
                self.chunks.append(samples)
            case CodesChunk(codes=codes):
                self.frames.append(codes)
            case other:
                raise TypeError(f"an unexpected output {other!r}")


class OmniEngine(TickedEngine):
    """A speaking family's pipeline with a tap."""

    def __init__(
        self,
        folder: Path,
        overrides: Mapping[str, object] | None = None,
        device: str | Device = "cpu",
        change: Callable[[Plan], Plan] = lambda plan: plan,
        plugins: Plugins | None = None,
        **options: Any,
    ) -> None:
        """plugins: None for those in tree."""
        plugins = plugins or in_tree_plugins()

        def tapped(plan: Plan) -> Plan:
            speaks = any(output.modality == "audio" for output in plan.pipeline.outputs)
            return change(check_pipeline(with_tap(plan.pipeline), plugins) if speaks else plan)

        device = open_device(device) if isinstance(device, str) else device
        super().__init__(folder, plugins, overrides, device, tapped, **options)
        self.frontend = build_frontend(self.plan.pipeline, self.checkpoint)
        self.most_rows: dict[str, int] = {}
        self.waited = False
        self._count = 0

    def request(self, chat: Chat, priority: int = 0) -> EngineRequest:
        """The chat as the engine takes it; with audio, its codes are an output too."""
        prepared = self.frontend.prepare(chat)
        self._count += 1
        wanted = chat.modalities | ({"codes"} if "audio" in chat.modalities else set())
        request = EngineRequest(str(self._count), wanted, prepared.inputs, edges=prepared.edges, sampling=chat.sampling)
        return replace(request, priority=priority, cache_salt=chat.cache_salt)

    def run(
        self,
        chats: Sequence[Chat],
        arrivals: Sequence[int] | None = None,
        departures: Mapping[int, int] | None = None,
    ) -> list[Result]:
        """Runs the chats; chat i joins before tick `arrivals[i]`, all at the start by default, and is given up before tick
        `departures[i]` if that is there: its result's error is then `GIVEN_UP`.

        Checks that no memory is held afterwards.
        """
        return self.run_requests([self.request(chat) for chat in chats], arrivals, departures)

    def answer(self, chat: Chat) -> Result:
        """Runs one chat alone and expects it to succeed."""
        (result,) = self.run([chat])
        if result.error is not None:
            raise result.error
        return result

    def run_requests(
        self,
        requests: Sequence[EngineRequest],
        arrivals: Sequence[int] | None = None,
        departures: Mapping[int, int] | None = None,
    ) -> list[Result]:
        """As `run`, for prepared requests."""
        due = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
        leaving = sorted((tick, index) for index, tick in (departures or {}).items())
        results = [Result() for _ in requests]
        since, tick = time.monotonic(), 0
        with torch.inference_mode():
            while due or not self.engine.idle:
                while due and due[0][0] <= tick:
                    index = due.pop(0)[1]
                    self.engine.submit(requests[index], results[index].take)
                while leaving and leaving[0][0] <= tick:
                    self.engine.abort(requests[leaving.pop(0)[1]].id, GIVEN_UP)
                since = time.monotonic() if self.engine.tick() else since
                assert time.monotonic() - since < PATIENCE_SECONDS, f"stuck with {self.engine.usage()}"
                self._watch()
                tick += 1
        self.assert_free()
        assert all(result.finished for result in results)
        return results

    def run_simulated(
        self, chats: Sequence[Chat], within: int = 0, tick: Callable[[], bool] | None = None
    ) -> list[Result]:
        """As `run`, on a simulated device; each chat joins in one of the first `within` rounds. There are no races.

        tick: one of the engine, as the test has it.
        """
        assert isinstance(self.device, SimulatedDevice)
        results = [Result() for _ in chats]
        with torch.inference_mode():
            simulation = self.simulate(tick)
            for asked, result in zip(chats, results, strict=True):
                submit = partial(self.engine.submit, self.request(asked), result.take)
                if within:
                    simulation.sometime(within, submit)
                else:
                    submit()
            simulation.run()
        self.assert_free()
        self.device.assert_no_races()
        return results

    def _watch(self) -> None:
        for name, usage in self.engine.usage().items():
            rows = usage.get("rows", 0)
            self.most_rows[name] = max(self.most_rows.get(name, 0), rows)
            self.waited |= 0 < rows < usage["requests"]


# Whether the engine gave what transformers gave.

TOLERANCE = 1e-4
"""Of the waveform's peak."""


def differences(result: Result, answer: Answer) -> set[str]:
    """Which of `text`, `codes` (of any group) and `wave` differ. The reference's waveform must be neither mute nor clipped."""
    if result.error is not None:
        raise result.error
    found: set[str] = set()
    if result.ids != answer.ids:
        found.add("text")
    if not torch.equal(result.codes, answer.codes):
        found.add("codes")
    if result.wave.shape != answer.wave.shape:
        return found | {"wave"}
    if answer.wave.size:
        peak = np.abs(answer.wave).max()
        assert 0.05 < peak < 0.95, f"the reference peaks at {peak}"
        if np.abs(result.wave - answer.wave).max() > TOLERANCE * peak:
            found.add("wave")
    return found


def assert_same(result: Result, answer: Answer) -> None:
    assert differences(result, answer) == set(), f"\n{result.ids}\n{answer.ids}\n{result.codes}\n{answer.codes}"


def assert_parity(engine: OmniEngine, chats: Sequence[Chat], arrivals: Sequence[int] | None = None) -> list[Result]:
    """Runs the chats, as `OmniEngine.run` does. Each gets what transformers' Qwen3-Omni gives to it alone."""
    results = engine.run(chats, arrivals)
    for result, asked in zip(results, chats, strict=True):
        assert_same(result, reference_of(engine.folder).answer(asked))
    return results


# Answers of a tiny Qwen3-Omni against those that the CPU gives to each request alone.


@dataclass(frozen=True, slots=True)
class Expected:
    """close: the choices that another device may make otherwise."""

    result: Result
    close: set[Choice]


UNCACHED = {"thinker.prefix_cache": False, "talker.prefix_cache": False}


def watched(engine: OmniEngine, chats: Sequence[Chat]) -> list[Expected]:
    """Answers of an engine on a `WatchedCpu`, one request after the other."""
    device, expected = engine.device, []
    assert isinstance(device, WatchedCpu)
    for asked in chats:
        device.forget()
        result = engine.answer(asked)
        assert device.choices >= len(result.ids) + result.codes.numel(), "choices went past the watch"
        assert "audio" not in asked.modalities or len(result.frames) > 5, "it says too little to compare"
        expected.append(Expected(result, set(device.close)))
    return expected


@cache
def answers_alone(shape: str) -> list[Expected]:
    """To `CHATS`, on the CPU, in plain torch. shape: of `SHAPES`."""
    return watched(OmniEngine(tiny_checkpoint(**SHAPES[shape]), UNCACHED, WatchedCpu()), CHATS)


def assert_all_same(results: Sequence[Result], expected: Sequence[Expected], comparison: Comparison) -> None:
    """Tokens, codes of all groups, reasons and waveforms; what follows from an excused difference is not compared."""
    for given, wanted in zip(results, expected, strict=True):
        if given.error is not None:
            raise given.error
        right, close = wanted.result, wanted.close
        if not comparison.tokens("thinker", given.ids, right.ids, close):
            continue
        if not comparison.frames("talker", given.frames, right.frames, close):
            continue
        assert given.reasons == right.reasons
        assert given.wave.shape == right.wave.shape
        if right.wave.size:
            assert np.abs(given.wave - right.wave).max() <= TOLERANCE * np.abs(right.wave).max()
