"""The stage under random arrivals, priorities, aborts, pauses, late conditioning, slow consumers and faults, in little memory.

Every step keeps its limits; the answers are those of requests that are alone in the world.
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.stage import Done, Failed
from omni.testing.simulation.late import QueuedDevice, StirredDevice
from omni_ar.inputs import Prompt
from omni_ar.options import ArOptions
from omni_ar.run.limits import MAX_STARTS, Limits
from omni_ar.run.plan import StepPlan
from omni_ar.run.request import RequestStatus
from omni_ar.run.step import StepContext
from tests.stages.omni_ar.statuses import check_statuses
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import SmallText, greedy

pytestmark = [pytest.mark.thorough, pytest.mark.plants_faults]
"""Each fault has a request fail or a batch run again, and there are no other failures or retries: both are counted here."""

LENGTH = 20
"""Tokens that a request may have."""

STOP, PAD, MOST = 7, 4, 8
"""The stop id of every request, the conditioning behind its own, and the most tokens of one."""

TEXT, CODEC = SmallText(payload=True), SmallCodec()
SALTS = ["", "", "salt"]
STEMS = [[1] * 12, [1] * 6 + [2] * 6, [3, 4] * 6]
"""What prompts begin with, so that they share prefixes."""


@functools.cache
def answer(prompt: tuple[int, ...]) -> list[list[int]]:
    return [[token] for token in greedy(TEXT, prompt, MOST, stops=(STOP,))]


@functools.cache
def speech(prompt: tuple[int, ...], texts: tuple[int, ...]) -> list[list[int]]:
    return spoken(CODEC, talker_prompt(prompt), texts, PAD, MOST, stops=(STOP,))


def talker_prompt(codes: Sequence[int]) -> Prompt:
    return codec_prompt([code % CODEC.texts for code in codes], codes)


class PressedDriver(ArDriver):
    """faults: steps that fail from now on, behind what they launch. violations: limits that a step exceeded."""

    def __init__(self, model: SmallText | SmallCodec, device: Device, options: ArOptions) -> None:
        super().__init__(model, device, options)
        self.faults = 0
        self.violations: list[str] = []
        self._limits = Limits.of("text", options, model.shape)
        runner = self.worker._runner
        self._execute = runner.execute_model
        runner.execute_model = self._checked  # type: ignore[method-assign]

    def _checked(self, plan: StepPlan) -> StepContext:
        fails, self.faults = self.faults > 0, max(0, self.faults - 1)
        self._check(plan)
        step = self._execute(plan)
        if fails:
            raise ValueError("a fault")
        return step

    def _check(self, plan: StepPlan) -> None:
        chunked = sum(chunk.length for chunk in plan.chunks)
        left = self._limits.max_num_batched_tokens - len(plan.decodes)
        self._demand(chunked <= max(1, left), f"{chunked} tokens beside {len(plan.decodes)} of the budget")
        self._demand(len(plan.starts) <= MAX_STARTS, f"{len(plan.starts)} starts")
        self._demand(len(set(plan.requests)) == len(plan.requests), "a request is in the step twice")
        self._demand(len(plan.requests) <= self._limits.rows, "more requests than rows")
        for request in plan.requests:
            self._demand(not request.paused, f"{request.id} runs while it is paused")
            alone = request.status is RequestStatus.RUNNING_ISOLATED
            self._demand(not alone or len(plan.requests) == 1, f"{request.id} is isolated and not alone")
            ahead = request.num_outputs_in_flight
            self._demand(0 <= ahead < self._limits.max_in_flight, f"{request.id} runs {ahead} tokens ahead")
            self._demand(request.num_scheduled_outputs < request.max_tokens, f"{request.id} runs past its limit")

    def _demand(self, holds: bool, what: str) -> None:
        # The worker takes an error of a step for the model's own: a broken rule is recorded instead.
        if not holds:
            self.violations.append(what)


@dataclass
class Asked:
    """The expected results of a request, and the conditioning sent so far."""

    salt: str
    prompt: list[int]
    frames: list[list[int]]
    wanted: list[int]
    texts: list[int]
    fed: int = 0
    aborted: bool = False
    paused: bool = False


class Pressure(RuleBasedStateMachine):
    model: ClassVar[SmallText | SmallCodec] = TEXT
    driver: PressedDriver

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, Asked] = {}
        self.faults = 0
        self.begun = False

    @initialize(
        rows=st.integers(1, 4),
        size=st.sampled_from([1, 2, 3]),
        spare=st.integers(0, 12),
        budget=st.sampled_from([1, 3, 7, 100]),
        prefix_cache=st.booleans(),
        device=st.sampled_from(["cpu", "queued", 1, 2, 3]),
        ahead=st.sampled_from([1, 2, 3, 8]),
    )
    def begin(
        self, rows: int, size: int, spare: int, budget: int, prefix_cache: bool, device: str | int, ahead: int
    ) -> None:
        options = ArOptions(
            max_num_seqs=rows,
            max_model_len=LENGTH,
            block_size=size,
            num_blocks=-(-LENGTH // size) + spare,  # the longest request and little more
            max_num_batched_tokens=budget,
            prefix_cache=prefix_cache,
            max_in_flight=ahead,
        )
        self.driver = PressedDriver(self.model, new_device(device), options)
        self.rows = rows
        self.begun = True

    @precondition(lambda self: len(self.asked) < 12)
    @rule(
        stem=st.sampled_from(STEMS),
        kept=st.integers(1, 12),
        tail=st.lists(st.integers(0, 4), max_size=3),
        max_tokens=st.integers(1, 8),
        priority=st.integers(0, 2),
        salt=st.sampled_from(SALTS),
        wanted=st.sets(st.integers(0, 14), max_size=3),
    )
    def ask(
        self,
        stem: list[int],
        kept: int,
        tail: list[int],
        max_tokens: int,
        priority: int,
        salt: str,
        wanted: set[int],
    ) -> None:
        number = len(self.asked)
        name, order, prompt = str(number), (priority, number), stem[:kept] + tail
        max_tokens = min(max_tokens, LENGTH - len(prompt))
        sampling = {"max_tokens": max_tokens, "stop_token_ids": (STOP,)}
        if self.talker:
            texts = [number % 3, 2, 1]
            frames = speech(tuple(prompt), tuple(texts))[:max_tokens]
            self.asked[name] = Asked(salt, prompt, frames, [], texts)
            self.driver.speak(name, talker_prompt(prompt), params=sampling, order=order, cache_salt=salt)
            return
        places = sorted(place for place in wanted if place < len(prompt))
        self.asked[name] = Asked(salt, prompt, answer(tuple(prompt))[:max_tokens], places, [])
        given = plain_prompt(prompt, payload_positions=np.array(places, np.int64))
        self.driver.ask(name, given, sampling, order=order, cache_salt=salt)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def another_turn(self, data: st.DataObject) -> None:
        """A prompt that continues the output of an earlier request, as the next turn of a chat does."""
        before = self.asked[data.draw(st.sampled_from(self.running))]
        said = before.prompt + [frame[0] for frame in before.frames]
        if len(self.asked) < 12 and len(said) < LENGTH - 4:
            tokens = data.draw(st.integers(1, 4))
            self.ask(said, len(said), [0], tokens, priority=0, salt=before.salt, wanted=set())

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running))
        self.asked[name].aborted = True
        self.driver.abort(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running))
        asked = self.asked[name]
        asked.paused = not asked.paused
        (self.driver.pause if asked.paused else self.driver.resume)(name)

    @precondition(lambda self: self.unconditioned)
    @rule(data=st.data(), end=st.booleans())
    def condition(self, data: st.DataObject, end: bool) -> None:
        name = data.draw(st.sampled_from(self.unconditioned))
        if end:
            self._condition(name)
            return
        asked = self.asked[name]
        self.driver.condition(name, asked.texts[asked.fed : asked.fed + 1])
        asked.fed = min(asked.fed + 1, len(asked.texts))

    @rule(times=st.integers(1, 6))
    def tick(self, times: int) -> None:
        for _ in range(times):
            self.driver.tick()

    @rule(operations=st.integers(1, 20))
    def device_runs(self, operations: int) -> None:
        if isinstance(self.driver.device, QueuedDevice):
            with torch.inference_mode():
                self.driver.device.run(operations=operations)

    @rule(data=st.data())
    def consumers_gather(self, data: st.DataObject) -> None:
        self.driver.gather(*data.draw(st.sets(st.sampled_from(list(self.asked) or ["none"]), min_size=1)))

    @rule()
    def consumers_look(self) -> None:
        self.driver.look()

    @rule()
    def a_step_will_fail(self) -> None:
        if self.driver.faults == 0 and self.faults < 3:
            self.faults += 1
            self.driver.faults = 1

    @invariant()
    def rules_hold(self) -> None:
        assert not self.driver.violations, self.driver.violations
        worker = self.driver.worker
        assert worker.usage()["rows"] <= self.rows
        check_statuses(worker._scheduler, worker.requests.values())

    def teardown(self) -> None:
        if not self.begun:
            return
        for name in self.unconditioned:
            self._condition(name)
        paused = [name for name in self.running if self.asked[name].paused]
        # A row is a paused request's until its end, so one of them may be left out where there is another row.
        left = set(paused[:1] if self.rows > 1 else [])
        self.driver.resume(*set(paused) - left)
        self._finish_but(left)
        self.driver.resume(*left)
        self._finish_but(set())
        assert not self.driver.held
        self._check_answers()

    def _finish_but(self, left: set[str]) -> None:
        """All other requests end in a bounded number of steps."""
        work = sum(len(asked.prompt) + len(asked.frames) for asked in self.asked.values())
        for _ in range(20 * work + 100):
            if left.issuperset(self.running) and not self.driver.lent and (left or not self.driver.held):
                break
            with torch.inference_mode():
                self.driver.tick()
                self.driver.device.synchronize()
                self.driver.gather()
        self.rules_hold()
        assert left.issuperset(self.running), f"no end of {set(self.running) - left}"

    def _check_answers(self) -> None:
        assert all(torch.equal(look, rows) for look, rows in self.driver.looks)
        failed = 0
        for name, asked in self.asked.items():
            tokens, frames = [frame[0] for frame in asked.frames], asked.frames[:-1]
            end = self.driver.ends.get(name)
            complete = isinstance(end, Done)
            failed += isinstance(end, Failed)
            assert complete or asked.aborted or "ValueError: a fault" in str(end)
            assert self.driver.tokens(name) == (tokens if complete else tokens[: len(self.driver.tokens(name))])
            assert (
                self.driver.frames(name)
                == (frames if self.talker else [])[: None if complete else len(self.driver.frames(name))]
            )
            hidden = self.driver.hidden(name)
            expected = [TEXT.whole(asked.prompt)[asked.wanted]] if asked.wanted else []
            torch.testing.assert_close(hidden, expected if complete else expected[: len(hidden)])
        assert failed + self.driver.counter("retries") <= self.faults

    @property
    def talker(self) -> bool:
        return self.model is CODEC

    @property
    def running(self) -> list[str]:
        return [name for name, asked in self.asked.items() if not asked.aborted and name not in self.driver.ends]

    @property
    def unconditioned(self) -> list[str]:
        return [name for name in self.running if self.talker and self.asked[name].fed >= 0]

    def _condition(self, name: str) -> None:
        asked = self.asked[name]
        self.driver.condition(name, asked.texts[asked.fed :], pad=PAD)
        asked.fed = -1


class TalkerPressure(Pressure):
    model = CODEC


def new_device(kind: str | int) -> Device:
    if isinstance(kind, int):
        return StirredDevice(kind)
    return CpuDevice() if kind == "cpu" else QueuedDevice()


@pytest.fixture(autouse=True)
def _without_warnings_of_faults(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "omni.stage")  # formatting their tracebacks takes longer than all else


class LongPressure(Pressure):
    """Of more examples."""


class LongTalkerPressure(TalkerPressure):
    """Of more examples."""


def _examples(machine: type[Pressure], count: int) -> Any:
    test = machine.TestCase
    test.settings = settings(
        max_examples=count, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    return test


TestPressure, TestTalkerPressure = (_examples(machine, 24) for machine in (Pressure, TalkerPressure))
TestLongPressure, TestLongTalkerPressure = (
    pytest.mark.slow(_examples(machine, 200)) for machine in (LongPressure, LongTalkerPressure)
)
