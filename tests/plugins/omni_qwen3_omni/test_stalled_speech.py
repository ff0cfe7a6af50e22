"""The speech side stalls for seconds: no text token of any request waits, and the later speech is the same."""

import pytest
import torch

from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.simulation import Simulation
from tests.support.omni_engine import OmniEngine, Result, assert_same
from tests.support.reference import chat, picture, reference_of, sizes, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few

SECONDS = 5.0
SHAPE = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)
CHATS = [
    chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
    chat("hello there", max_text=12, max_codes=22),
    chat("only write", sound(0.6, 2), voice=None, max_text=11),
]


@pytest.mark.parametrize("stalled", few(2, ["talker-payload", "code2wav", "talker", "code2wav-copy"], SLOW))
def test_text_comes_while_speech_stalls_and_then_speech_does(stalled: str) -> None:
    folder = tiny_checkpoint(**SHAPE)
    device = SimulatedDevice(2, check=False)
    assert device.schedule is not None
    device.schedule.stalls = 0.0
    engine = OmniEngine(folder, device=device)
    results = [Result() for _ in CHATS]
    times: list[float] = []

    def tick() -> bool:
        before = sum(len(result.ids) for result in results)
        with torch.inference_mode():
            moved = engine.engine.tick()
        times.extend([device.now] * (sum(len(result.ids) for result in results) - before))
        return moved

    start = device.now
    device.stall(stalled, SECONDS)
    for asked, result in zip(CHATS, results, strict=True):
        engine.engine.submit(engine.request(asked), result.take)
    Simulation(device, tick, lambda: engine.engine.idle).run()

    assert times[-1] - start < SECONDS / 10, "no token waits"
    assert device.now - start > SECONDS
    for asked, result in zip(CHATS, results, strict=True):
        assert_same(result, reference_of(folder).answer(asked))
        spoken = [place for place, what in enumerate(result.log) if what == "audio"]
        if spoken:
            assert result.log[: spoken[0]].count("text") == len(result.ids)
    engine.assert_free()
