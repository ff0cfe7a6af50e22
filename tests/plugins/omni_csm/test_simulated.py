"""Whole requests on the simulated device, captured and checked for races, and through the launch guard."""

import pytest
import torch

from omni.device import open_device
from omni.frontend.base import Chat
from omni.testing.launch_guard import LaunchGuard
from omni.testing.simulation import SimulatedDevice, Simulation
from tests.support.csm_reference import csm_reference_of, speak, tiny_csm, turn
from tests.support.omni_engine import OmniEngine, Result
from tests.support.tiers import SLOW, few

ASKED: list[Chat] = [
    speak("hello", frames=7),
    speak(turn("user", "how are you", 0.3, 1), turn("assistant", "well", 0.5, 2), "and you", frames=11),
    speak(turn("user", "who", 0.12, 3), "me", voice="1", frames=3),
    speak("hello", frames=16),
]
SETTINGS = {
    "backbone.max_num_seqs": 3,
    "backbone.max_in_flight": 3,
    "backbone.block_size": 4,
    "vocoder.max_num_seqs": 2,
    "vocoder.first_chunk_frames": 2,
    "vocoder.chunk_frames": 4,
}


@pytest.mark.parametrize("seed", few(1, range(9), SLOW))
def test_requests_on_a_device_in_any_order(seed: int) -> None:
    device = SimulatedDevice(seed)
    engine = OmniEngine(tiny_csm(), SETTINGS, device, graphs=True)
    results = [Result() for _ in ASKED]
    for asked, result in zip(ASKED, results, strict=True):
        engine.engine.submit(engine.request(asked), result.take)
    with torch.inference_mode():
        Simulation(device, engine.engine.tick, lambda: engine.engine.idle).run()
    device.assert_no_races()
    engine.assert_free()
    for asked, result in zip(ASKED, results, strict=True):
        spoken = csm_reference_of(tiny_csm()).speech(asked)
        assert torch.equal(result.codes, spoken.codes)
        assert abs(result.wave - spoken.wave).max() <= 1e-4 * abs(spoken.wave).max()


def test_no_torch_operation_outside_a_phase() -> None:
    device = open_device("cpu")
    engine = OmniEngine(tiny_csm(), SETTINGS, device)
    requests = [engine.request(asked) for asked in ASKED]  # the front end is free to use torch
    with LaunchGuard(device) as guard:
        results = engine.run_requests(requests, [0, 3, 5, 9])
    assert all(result.error is None for result in results), [result.error for result in results]
    assert guard.operations > 1000
