"""Mixed batches whose requests join one by one, against separate runs of transformers; on the CPU, and on a device that is late."""

import random

import pytest

from tests.plugins.omni_qwen3_omni.parity_cases import MIXED
from tests.support.devices import StirredDevice
from tests.support.omni_engine import OmniEngine, assert_same
from tests.support.reference import chat, picture, reference_of, sizes, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few

FEW_ROWS = {"thinker.max_num_seqs": 3, "talker.max_num_seqs": 2, "code2wav.max_num_seqs": 2}
SETTINGS: dict[str, dict[str, object]] = {
    "as shipped": {},
    "few rows": FEW_ROWS | {"thinker.block_size": 4, "talker.block_size": 8, "audio_encoder.max_batch_items": 1},
    "one row": {"thinker.max_num_seqs": 1, "talker.max_num_seqs": 1, "code2wav.max_num_seqs": 1},
    "more text rows than speech rows": {"thinker.max_num_seqs": 8, "talker.max_num_seqs": 1},
    "few blocks": {"thinker.num_blocks": 16, "talker.num_blocks": 12, "vision_encoder.cache_bytes": 0},
    "short prompts first": {"thinker.max_num_batched_tokens": 32, "talker.max_num_batched_tokens": 16},
}


@pytest.mark.parametrize("settings", few(2, SETTINGS, SLOW))
def test_parity_of_eight_that_join_one_by_one(settings: str) -> None:
    folder = tiny_checkpoint(11, stop_gain=0.5, codec_stop_gain=0.5)
    engine = OmniEngine(folder, SETTINGS[settings])
    arrivals = [0, 2, 5, 6, 11, 15, 16, 28]

    results = engine.run(MIXED, arrivals)

    for result, asked in zip(results, MIXED, strict=True):
        assert_same(result, reference_of(folder).answer(asked))
    if settings in ("few rows", "one row", "few blocks"):
        assert engine.waited, "no request had to wait"
    if settings == "few rows":
        assert (engine.most_rows["thinker"], engine.most_rows["talker"]) == (3, 2)
    if settings == "as shipped":
        assert engine.most_rows["thinker"] > 3


@pytest.mark.parametrize("seed", few(1, range(3), SLOW))
def test_parity_in_any_order_and_again(seed: int) -> None:
    """The engine's second run finds its rows, blocks and caches used."""
    folder = tiny_checkpoint(11, stop_gain=0.5, codec_stop_gain=0.5)
    engine, chance = OmniEngine(folder, FEW_ROWS), random.Random(seed)

    for _ in range(2):
        chats = chance.sample(MIXED, len(MIXED))
        results = engine.run(chats, [chance.randrange(60) for _ in chats])

        for result, asked in zip(results, chats, strict=True):
            assert_same(result, reference_of(folder).answer(asked))


def test_equal_requests_have_equal_answers() -> None:
    folder = tiny_checkpoint(11, stop_gain=0.5, codec_stop_gain=0.5)

    first, *others = OmniEngine(folder).run([MIXED[3]] * 5, [0, 0, 1, 9, 20])

    for other in others:
        assert (other.ids, other.frames) == (first.ids, first.frames)


SHAPE = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)
CHATS = [
    chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
    chat("hello there", max_text=12, max_codes=30),
    chat(picture(40, 40, 3), "x", max_text=3, max_codes=6),
    chat("bye", max_text=2, max_codes=4),
]
FEW_ROWS_SMALL_CHUNKS = {"talker.max_num_seqs": 2, "code2wav.first_chunk_frames": 2, "code2wav.chunk_frames": 5}


@pytest.mark.parametrize("seed", few(1, range(4), SLOW))
def test_parity_in_any_order_of_the_streams(seed: int) -> None:
    folder = tiny_checkpoint(**SHAPE)
    device = StirredDevice(seed)
    engine = OmniEngine(folder, FEW_ROWS_SMALL_CHUNKS, device)

    results = engine.run(CHATS, [0, 3, 9, 20])

    for result, asked in zip(results, CHATS, strict=True):
        assert_same(result, reference_of(folder).answer(asked))
    assert device.latest > 5, "work was late"
