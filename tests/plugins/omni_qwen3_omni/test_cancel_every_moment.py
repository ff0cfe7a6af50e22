"""A request is given up before every tick of the engine, from its arrival to its last sample."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omni.testing.engines import GIVEN_UP
from tests.support.omni_engine import OmniEngine, Result
from tests.support.reference import chat, picture, sound, tiny_checkpoint
from tests.support.tiny_omni import SHAPE, TOLERANCE

VICTIM = chat("what is it", sound(0.4, seed=1), picture(56, 84, seed=1), max_text=7, max_codes=14)
OTHER = chat("who said so", sound(0.4, seed=2), picture(56, 56, seed=2), voice="aiden", max_text=9, max_codes=13)
NO_CACHES = {"audio_encoder.cache_bytes": 0, "vision_encoder.cache_bytes": 0}
SETTLING_TICKS = 3
"""Until an abort has reached all stages and every event of the CPU device is complete."""
ENOUGH_TICKS = 300
"""For both requests."""


@dataclass(slots=True)
class World:
    """An engine, and the results of the requests alone."""

    engine: OmniEngine
    victim: Result
    other: Result

    @torch.inference_mode()
    def give_up_before(self, tick: int) -> tuple[Result, Result]:
        """Runs the victim beside the other request, and gives it up before a tick."""
        victim, other = Result(), Result()
        request, engine = self.engine.request(VICTIM), self.engine.engine
        engine.submit(request, victim.take)
        engine.submit(self.engine.request(OTHER), other.take)
        self._tick(tick)
        engine.abort(request.id, GIVEN_UP)
        self._tick(SETTLING_TICKS)
        assert victim.finished
        for _ in range(ENOUGH_TICKS):
            if engine.idle:
                break
            self._tick(1)
        self.engine.assert_free()
        assert engine.idle
        return victim, other

    def _tick(self, times: int) -> None:
        for _ in range(times):
            self.engine.engine.tick()


@pytest.fixture(scope="module")
def world() -> World:
    engine = OmniEngine(tiny_checkpoint(3, **SHAPE), NO_CACHES)
    return World(engine, engine.answer(VICTIM), engine.answer(OTHER))


def assert_begins(part: Result, whole: Result) -> None:
    """The outputs before the end are the beginning of the complete outputs."""
    assert part.error is GIVEN_UP
    assert part.ids == whole.ids[: len(part.ids)]
    assert part.frames == whole.frames[: len(part.frames)]
    assert len(part.wave) < len(whole.wave)
    assert_close(part.wave, whole.wave[: len(part.wave)])


def assert_close(wave: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert wave.shape == expected.shape
    assert np.abs(wave - expected).max(initial=0) <= TOLERANCE


def test_the_other_request_equals_itself_alone_and_all_is_free(world: World) -> None:
    given = set()
    for tick in range(ENOUGH_TICKS):
        victim, other = world.give_up_before(tick)
        if victim.error is None:
            break
        assert_begins(victim, world.victim)
        given.add((len(victim.ids), len(victim.frames)))
        assert (other.ids, other.frames, other.reasons) == (world.other.ids, world.other.frames, world.other.reasons)
        assert_close(other.wave, world.other.wave)
    assert {ids for ids, _ in given} == set(range(8))
    assert {frames for _, frames in given} >= set(range(13))
