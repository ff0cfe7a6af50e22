"""Whole requests on the simulated device, captured and checked for races, and through the launch guard."""

import pytest

from omni.device import open_device
from omni.frontend.base import Chat
from omni.testing import LaunchGuard, SimulatedDevice
from omni.testing.simulation.late import LateDevice
from tests.plugins.omni_qwen2_5_omni.fixed_noise import CHATS, SHAPES, STREAMED, WHOLE, FixedNoiseEngine, answers_alone
from tests.support.close_calls import Comparison
from tests.support.csm_reference import assert_spoken, csm_reference_of, speak, tiny_csm, turn
from tests.support.omni_engine import OmniEngine, assert_all_same
from tests.support.tiers import SLOW, few
from tests.support.tiny_qwen2_5_omni import tiny_folder

FEW_ROWS = {
    "thinker.max_num_seqs": 3,
    "thinker.max_in_flight": 3,
    "thinker.block_size": 4,
    "talker.max_num_seqs": 2,
    "talker.max_in_flight": 3,
    "talker.block_size": 4,
    "token2wav.max_num_seqs": 2,
}
FEW_BLOCKS = {
    "thinker.num_blocks": 19,
    "thinker.block_size": 4,
    "thinker.max_num_batched_tokens": 9,
    "talker.num_blocks": 24,
    "talker.block_size": 4,
    "talker.max_in_flight": 4,
}
TURNS: list[Chat] = [
    speak("hello", frames=7),
    speak(turn("user", "how are you", 0.3, 1), turn("assistant", "well", 0.5, 2), "and you", frames=11),
    speak(turn("user", "who", 0.12, 3), "me", voice="1", frames=3),
    speak("hello", frames=16),
]
FEW_FRAMES = {
    "backbone.max_num_seqs": 3,
    "backbone.max_in_flight": 3,
    "backbone.block_size": 4,
    "vocoder.max_num_seqs": 2,
    "vocoder.first_chunk_frames": 2,
    "vocoder.chunk_frames": 4,
}


@pytest.mark.parametrize("seed", few(0, range(10), SLOW))
def test_qwen2_5_omni_on_a_device_in_any_order(seed: int) -> None:
    shape, whole = ("other sizes", "as written")[seed % 2], seed % 4 < 2
    settings = FEW_ROWS | dict(WHOLE if whole else STREAMED)
    engine = FixedNoiseEngine(tiny_folder(**SHAPES[shape]), settings, SimulatedDevice(seed), graphs=True)
    assert_all_same(engine.run_simulated(CHATS, within=40), answers_alone(shape, whole), Comparison())


@pytest.mark.parametrize("seed", few(0, range(9), SLOW))
def test_csm_on_a_device_in_any_order(seed: int) -> None:
    engine = OmniEngine(tiny_csm(), FEW_FRAMES, SimulatedDevice(seed), graphs=True)
    for asked, result in zip(TURNS, engine.run_simulated(TURNS), strict=True):
        assert_spoken(result, csm_reference_of(tiny_csm()).speech(asked))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_chunked_preempted_and_run_ahead(seed: int) -> None:
    """Rows that conditioned steps of a preempted request are read again where they lie."""
    settings = FEW_BLOCKS | dict(STREAMED)
    engine = FixedNoiseEngine(tiny_folder(**SHAPES["as written"]), settings, LateDevice(seed), graphs=True)
    most = 0

    def tick() -> bool:
        nonlocal most
        most = max(most, engine.engine.usage()["talker"]["steps"])
        return engine.tick()

    results = engine.run_simulated(CHATS, tick=tick)
    assert_all_same(results, answers_alone("as written", whole=False), Comparison())
    counters = engine.engine.counters()
    assert counters["thinker"]["preemptions"]
    assert counters["talker"]["preemptions"]
    assert most > 1


@pytest.mark.parametrize("family", ["qwen2_5_omni", "csm"])
def test_no_torch_operation_outside_a_phase(family: str) -> None:
    device, chats = open_device("cpu"), TURNS if family == "csm" else CHATS
    engine = (
        OmniEngine(tiny_csm(), FEW_FRAMES, device)
        if family == "csm"
        else FixedNoiseEngine(tiny_folder(**SHAPES["as written"]), FEW_ROWS | dict(STREAMED), device)
    )
    requests = [engine.request(asked) for asked in chats]  # the front end is free to use torch
    with LaunchGuard(device) as guard:
        results = engine.run_requests(requests, [0, 3, 5, 9, 14][: len(requests)])
    assert all(result.error is None for result in results), [result.error for result in results]
    assert guard.operations > 1000
    if family != "csm":
        assert {"gather_rows", "begin_windows", "denoise_rows", "render_part"} <= guard.launched
