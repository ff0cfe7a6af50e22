"""A vocoder that seats one request while many speak: frames wait, are moved out of blocks that are wanted, and talkers pause."""

from collections import Counter

import pytest

from omni_ar.run.request import ArRequest
from omni_ar.run.worker import ArWorker
from tests.support.devices import StirredDevice
from tests.support.omni_engine import OmniEngine, assert_same
from tests.support.pressure import SMALL_BUDGET, Overrides, counted, few_blocks, overrides
from tests.support.reference import chat, picture, reference_of, sizes, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few

SHAPE = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)
ONE_LISTENER: Overrides = {"code2wav.max_num_seqs": 1, "code2wav.first_chunk_frames": 2, "code2wav.chunk_frames": 5}
CHATS = [
    chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
    chat("hello there", max_text=12, max_codes=30),
    chat(picture(40, 40, 3), "x", max_text=3, max_codes=26),
    chat("bye", max_text=2, max_codes=24),
    chat("who", sound(0.3, 2), voice="aiden", max_text=6, max_codes=28),
]


@pytest.mark.parametrize("settings", [{}, SMALL_BUDGET], ids=["any budget", "budget 7"])
def test_parity_where_frames_are_moved_before_they_are_taken(settings: Overrides) -> None:
    engine = OmniEngine(tiny_checkpoint(**SHAPE), overrides(ONE_LISTENER, few_blocks(20, 19), settings))

    results = engine.run(CHATS, [0, 3, 9, 20, 22])

    for result, asked in zip(results, CHATS, strict=True):
        assert_same(result, reference_of(engine.folder).answer(asked))
    assert counted(engine, "talker")["spilled_rows"] > 0


@pytest.mark.slow
def test_parity_where_talkers_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request after the other is listened to; the others wait with what their credit allows."""
    paused, pause = Counter[str](), ArWorker.pause

    def counting(self: ArWorker, request: ArRequest) -> None:
        paused[self.name] += 1
        pause(self, request)

    monkeypatch.setattr(ArWorker, "pause", counting)
    chats = [chat("tell me more", voice=voice, max_text=12, max_codes=100) for voice in ("ethan", "aiden", "chelsie")]
    engine = OmniEngine(tiny_checkpoint(**SHAPE), overrides(ONE_LISTENER, few_blocks(20, 40)))

    results = engine.run([*chats, CHATS[0]], [0, 0, 1, 30])

    for result, asked in zip(results, [*chats, CHATS[0]], strict=True):
        assert_same(result, reference_of(engine.folder).answer(asked))
    assert paused["talker"] >= 2
    assert counted(engine, "talker")["preemptions"] > 0


@pytest.mark.parametrize("seed", few(1, range(3), SLOW))
def test_parity_in_any_order_of_the_streams(seed: int) -> None:
    """All pressures at once on a device whose streams run late: nothing is reused before its readers are through."""
    device = StirredDevice(seed)
    engine = OmniEngine(tiny_checkpoint(**SHAPE), overrides(ONE_LISTENER, few_blocks(14, 19), SMALL_BUDGET), device)

    results = engine.run(CHATS, [0, 3, 9, 20, 40])

    for result, asked in zip(results, CHATS, strict=True):
        assert_same(result, reference_of(engine.folder).answer(asked))
    assert device.latest > 5, "work was late"
    for stage in ("thinker", "talker"):
        assert counted(engine, stage)["preemptions"] > 0
    assert counted(engine, "talker")["spilled_rows"] > 0
