"""A whole request with media, text and speech waits for the device nowhere."""

import pytest

from omni.device import SyncCheck, open_device, sync_guard
from support.omni_engine import OmniEngine
from support.reference import chat, picture, sound, tiny_checkpoint


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_nothing_waits_but_what_is_listed(name: str) -> None:
    device = open_device(name)
    engine = OmniEngine(tiny_checkpoint(), {"talker.max_num_seqs": 1}, device)
    chats = [
        chat("what is it", picture(64, 64), sound(0.6), max_text=8, max_codes=30),
        chat("hello", max_text=8, max_codes=12, voice="aiden"),
        chat(picture(64, 64), voice=None),
    ]
    requests = [engine.request(asked) for asked in chats]

    with sync_guard(device, SyncCheck.ERROR):
        results = engine.run_requests(requests, [0, 3, 5])

    assert all(result.error is None for result in results), [result.error for result in results]
    assert results[0].wave.size
