"""An engine with one fault while a few chats run, and its allowed consequences."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from omni.errors import StageError
from omni.frontend.base import Chat
from omni.testing.faults import FaultyDevice, FaultyStirredDevice, Place, PlantedError
from tests.support.omni_engine import OmniEngine, Result, differences
from tests.support.pressure import NO_CACHE, Overrides, few_blocks, overrides
from tests.support.reference import chat, picture, reference_of, sizes, sound, tiny_checkpoint

AR = ("thinker", "talker")
STAGES = ("audio_encoder", "vision_encoder", *AR, "code2wav")
SHAPE = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)
CHATS = [
    chat("what is it", sound(0.3, 1), picture(64, 64, 2), max_text=8, max_codes=9),
    chat(picture(32, 64, 3), sound(0.3, 2), "x", max_text=10, max_codes=14),
    chat("hello there", max_text=12, max_codes=16),
    chat("bye", sound(0.3, 2), voice=None, max_text=6),
]
NO_CACHES: Overrides = overrides(NO_CACHE, {"audio_encoder.cache_bytes": 0, "vision_encoder.cache_bytes": 0})
ALONE: Overrides = {
    "audio_encoder.max_batch_items": 1,
    "vision_encoder.max_batch_items": 1,
    "thinker.max_num_seqs": 1,
    "talker.max_num_seqs": 1,
    "code2wav.max_num_seqs": 1,
}
"""Every batch is of one."""

TOGETHER: Overrides = overrides(
    few_blocks(13, 15),
    {"code2wav.max_num_seqs": 2, "code2wav.first_chunk_frames": 2, "code2wav.chunk_frames": 5},
)
"""Batches of several, and so few blocks that requests are preempted and frames are moved."""


class FaultBench:
    """The chats under settings, on a device that can fail. seed: of a device whose streams run late; None takes the plain one."""

    def __init__(self, settings: Overrides, seed: int | None = None) -> None:
        self.device = FaultyDevice() if seed is None else FaultyStirredDevice(seed)
        self.engine = OmniEngine(tiny_checkpoint(**SHAPE), settings, self.device)
        self.launched: Mapping[Place, int] = self._launches()

    def run(self) -> list[Result]:
        return self.engine.run(CHATS, [0, 1, 2, 4])

    def places(self, stage: str) -> list[str]:
        """The phases that the stage launches while the chats run undisturbed."""
        return sorted(phase for owner, phase in self.launched if owner == stage)

    def fail_at(self, stage: str, phase: str, chance: random.Random, *, after: bool) -> list[Result]:
        """Runs the chats, with a fault at a random one of the phase's launches."""
        number = chance.randrange(self.launched[stage, phase])
        fault = self.device.faults.plant((stage, phase), number, after=after)
        results = self.run()
        assert not fault.left, f"{stage} launched {phase} less often than {number + 1} times"
        return results

    def _launches(self) -> Counter[Place]:
        assert failures(self.run()) == []
        self.device.faults.seen.clear()
        assert failures(self.run()) == []
        return self.device.faults.seen.copy()


@cache
def bench(pressure: str) -> FaultBench:
    """`"alone"`, `"together"`, and of the latter `"cached"` (with prefix cache) and `"late"` (on a device whose streams run late).

    One for all tests of a module: that it lives through each of them is part of what they show.
    """
    match pressure:
        case "alone":
            return FaultBench(overrides(NO_CACHES, ALONE))
        case "together":
            return FaultBench(overrides(NO_CACHES, TOGETHER))
        case "cached":
            return FaultBench(overrides(TOGETHER, few_blocks(40, 40)))
        case "late":
            return FaultBench(overrides(NO_CACHES, TOGETHER), seed=1)
    raise ValueError(pressure)


def assert_named(error: Exception, stage: str, phase: str) -> None:
    """The error names the place of the fault."""
    assert str(error).startswith(f"stage '{stage}' failed while "), error
    assert f"in phase {phase}" in str(error)
    assert isinstance(error.__cause__, PlantedError)


def failures(results: Sequence[Result], chats: Sequence[Chat] = CHATS) -> list[StageError]:
    """The errors of those that failed. The answers of the others are transformers'."""
    errors = []
    for result, asked in zip(results, chats, strict=True):
        if result.error is None:
            answer = reference_of(tiny_checkpoint(**SHAPE)).answer(asked)
            assert differences(result, answer) == set(), f"\n{result.ids}\n{answer.ids}\n{result.codes}\n{answer.codes}"
        else:
            assert isinstance(result.error, StageError)
            errors.append(result.error)
    return errors
