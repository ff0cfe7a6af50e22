"""On a device whose streams run late and in any order, results are the same: nothing is read before its event."""

import pytest

from support.devices import StirredDevice
from support.omni_engine import OmniEngine, assert_same
from support.reference import chat, picture, reference_of, sizes, sound, tiny_checkpoint

SHAPE = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)
CHATS = [
    chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
    chat("hello there", max_text=12, max_codes=30),
    chat(picture(40, 40, 3), "x", max_text=3, max_codes=6),
    chat("bye", max_text=2, max_codes=4),
]
FEW_ROWS_SMALL_CHUNKS = {"talker.max_num_seqs": 2, "code2wav.first_chunk_frames": 2, "code2wav.chunk_frames": 5}


@pytest.mark.parametrize("seed", range(4))
def test_parity_in_any_order_of_the_streams(seed: int) -> None:
    folder = tiny_checkpoint(**SHAPE)
    device = StirredDevice(seed)
    engine = OmniEngine(folder, FEW_ROWS_SMALL_CHUNKS, device)

    results = engine.run(CHATS, [0, 3, 9, 20])

    for result, asked in zip(results, CHATS, strict=True):
        assert_same(result, reference_of(folder).answer(asked))
    assert device.latest > 5, "work was late"
