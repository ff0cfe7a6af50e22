"""A whole request with media touches device memory in phases only."""

from omni.device import open_device
from omni.testing.launch_guard import LaunchGuard
from support.omni_engine import OmniEngine
from support.reference import chat, picture, sound, tiny_checkpoint


def test_no_torch_operation_outside_a_phase() -> None:
    device = open_device("cpu")
    engine = OmniEngine(tiny_checkpoint(), {"talker.max_num_seqs": 1}, device)
    chats = [
        chat("what is it", picture(64, 64), sound(0.6), max_text=8, max_codes=30),
        chat("hello", max_text=8, max_codes=12, voice="aiden"),
        chat(picture(64, 64), voice=None),
    ]
    requests = [engine.request(asked) for asked in chats]  # the front end is free to use torch

    with LaunchGuard(device) as guard:
        results = engine.run_requests(requests, [0, 3, 5])

    assert all(result.error is None for result in results), [result.error for result in results]
    assert results[0].wave.size
    assert guard.operations > 1000
