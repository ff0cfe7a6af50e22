"""Mixed batches whose requests join one by one, against separate runs of transformers, under every pressure.

Pressures: few rows, blocks and tokens a step, with and without the prefix cache, a slow vocoder, streams that run late, and
requests that leave. Text tokens and codes of every group are equal, the waveform is within 1e-4 of its peak.
"""

import random

import pytest

from omni.testing.engines import GIVEN_UP
from omni.testing.simulation.late import StirredDevice
from tests.plugins.omni_qwen3_omni.parity_cases import CASES, MIXED, VOICES
from tests.support.omni_engine import OmniEngine, Result, assert_parity, assert_same
from tests.support.pressure import NO_CACHE, SMALL_BUDGET, Overrides, counted, few_blocks, overrides
from tests.support.reference import Answer, chat, picture, reference_of, sizes, sound, tiny_checkpoint
from tests.support.tiers import SLOW, chosen, few

AR = ("thinker", "talker")
ENDING = sizes(seed=11, stop_gain=0.5, codec_stop_gain=0.5)
"""A checkpoint with some answers that end by themselves."""
ENDLESS = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)

PRODUCT = {
    f"{budget}, {cache}, {pool}"
    for budget in ("any budget", "budget 7")
    for cache in ("cached", "not cached")
    for pool in ("any pool", "few blocks")
}
PRESSED = "budget 7, cached, few blocks"


def under(pressure: str, pool: Overrides) -> dict[str, object]:
    """Settings of a pressure of `PRODUCT`. pool: a few blocks."""
    parts = {"budget 7": SMALL_BUDGET, "not cached": NO_CACHE, "few blocks": pool}
    return overrides(*(parts.get(part, {}) for part in pressure.split(", ")))


def assert_pressed(engine: OmniEngine, pressure: str) -> None:
    """There was pressure: a pool that is large enough tests nothing."""
    for stage in AR:
        preemptions = counted(engine, stage)["preemptions"]
        assert (preemptions > 0) == ("few blocks" in pressure), f"{stage}: {preemptions} preemptions"
        assert (counted(engine, stage)["cached_blocks"] == 0) == ("not cached" in pressure)


@pytest.mark.parametrize(
    ("pressure", "half"),
    chosen(
        [(PRESSED, 1)],
        [(pressure, half) for pressure in sorted(PRODUCT) for half in (0, 1)],
    ),
)
def test_parity_of_every_kind_of_input(pressure: str, half: int) -> None:
    """Half of `CASES` at once; the longest prompt only where it fits."""
    folder = tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0, voices=VOICES)
    engine = OmniEngine(folder, under(pressure, few_blocks(26, (28, 24)[half])))
    chats = [asked for name, asked in CASES.items() if name != "long prompt" or "any pool" in pressure][half::2]

    for result, asked in zip(assert_parity(engine, chats, range(len(chats))), chats, strict=True):
        assert len(result.ids) == asked.sampling["thinker"].max_tokens
        assert not result.frames or len(result.frames) + 1 == asked.sampling["talker"].max_tokens

    assert_pressed(engine, pressure)


FEW_ROWS: dict[str, object] = {"thinker.max_num_seqs": 3, "talker.max_num_seqs": 2, "code2wav.max_num_seqs": 2}
ROWS: dict[str, dict[str, object]] = {
    "as shipped": {},
    "few rows": FEW_ROWS | {"thinker.block_size": 4, "talker.block_size": 8, "audio_encoder.max_batch_items": 1},
    "one row": {"thinker.max_num_seqs": 1, "talker.max_num_seqs": 1, "code2wav.max_num_seqs": 1},
    "more text rows than speech rows": {"thinker.max_num_seqs": 8, "talker.max_num_seqs": 1},
    "few large blocks": {"thinker.num_blocks": 16, "talker.num_blocks": 12, "vision_encoder.cache_bytes": 0},
    "short prompts first": {"thinker.max_num_batched_tokens": 32, "talker.max_num_batched_tokens": 16},
}


@pytest.mark.parametrize(
    "settings", few(0, ["few rows", *(name for name in ROWS if name != "few rows"), *sorted(PRODUCT)], SLOW)
)
def test_parity_of_eight_that_join_one_by_one_and_again(settings: str) -> None:
    """The second time in another order, with rows, blocks and cache as the first time left them."""
    pressure = settings if settings in PRODUCT else None
    engine = OmniEngine(tiny_checkpoint(**ENDING), under(pressure, few_blocks(24, 23)) if pressure else ROWS[settings])
    chance = random.Random(3)

    assert_parity(engine, MIXED, [0, 2, 5, 6, 11, 15, 16, 28])
    if settings in ("few rows", "one row", "few large blocks"):
        assert engine.waited, "no request had to wait"
    if settings == "few rows":
        assert (engine.most_rows["thinker"], engine.most_rows["talker"]) == (3, 2)
    if settings == "as shipped":
        assert engine.most_rows["thinker"] > 3
    again = chance.sample(MIXED, len(MIXED))
    assert_parity(engine, again, [chance.randrange(40) for _ in again])

    if pressure:
        assert_pressed(engine, pressure)
        for stage in AR:
            assert (counted(engine, stage)["cached_tokens"] > 0) == ("not cached" not in pressure)


# A vocoder with a row for one of many requests: frames wait, are moved out of blocks that others need, and talkers pause.

ONE_LISTENER: Overrides = {"code2wav.max_num_seqs": 1, "code2wav.first_chunk_frames": 2, "code2wav.chunk_frames": 5}
CHATS = [
    chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
    chat("hello there", max_text=12, max_codes=30),
    chat(picture(40, 40, 3), "x", max_text=3, max_codes=26),
    chat("bye", max_text=2, max_codes=24),
    chat("who", sound(0.3, 2), voice="aiden", max_text=6, max_codes=28),
]


@pytest.mark.parametrize(
    ("settings", "seed"),
    [
        *few(0, [(overrides(ONE_LISTENER, few_blocks(14, 19), SMALL_BUDGET), seed) for seed in range(1, 4)], SLOW),
        *few(0, [({**ONE_LISTENER, "talker.max_num_seqs": 2, "code2wav.max_num_seqs": 4}, n) for n in range(4)], SLOW),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else f"{len(value)} settings",
)
def test_parity_in_any_order_of_the_streams(settings: Overrides, seed: int) -> None:
    """On a device whose streams run late: no memory is reused before its last read."""
    device = StirredDevice(seed)
    engine = OmniEngine(tiny_checkpoint(**ENDLESS), settings, device)

    assert_parity(engine, CHATS, [0, 3, 9, 20, 40])

    assert device.latest > 5, "work was late"
    if "talker.num_blocks" in settings:
        assert all(counted(engine, stage)["preemptions"] > 0 for stage in AR)
        assert counted(engine, "talker")["spilled_rows"] > 0


# Requests that leave.

REQUESTS = 30


def assert_begins(result: Result, answer: Answer) -> None:
    """The outputs before the end are the beginning of the whole answer."""
    assert result.ids == answer.ids[: len(result.ids)]
    assert result.codes.T.tolist() == answer.codes.T[: len(result.frames)].tolist()
    assert result.wave.size <= answer.wave.size


@pytest.mark.parametrize("seed", few(0, range(20), SLOW))
def test_parity_while_other_requests_come_and_go(seed: int) -> None:
    """Under every pressure, every other time on a device whose streams run late."""
    chance = random.Random(seed)
    folder = tiny_checkpoint(**ENDING)
    rows = {"thinker.max_num_seqs": 8, "talker.max_num_seqs": 6, "code2wav.max_num_seqs": 2}
    settings = [rows, few_blocks(24, 23), SMALL_BUDGET if chance.random() < 0.7 else {}]
    device = StirredDevice(seed) if seed % 2 else "cpu"
    engine = OmniEngine(folder, overrides(*settings, NO_CACHE if seed % 3 == 2 else {}), device)
    chats = [chance.choice(MIXED) for _ in range(REQUESTS)]
    arrivals = [chance.randrange(120) for _ in chats]
    departures = {
        index: arrivals[index] + chance.randrange(120) for index in chance.sample(range(REQUESTS), REQUESTS // 2)
    }

    results = engine.run(chats, arrivals, departures)

    left = 0
    for index, (result, asked) in enumerate(zip(results, chats, strict=True)):
        answer = reference_of(folder).answer(asked)
        if result.error is GIVEN_UP:
            assert index in departures
            assert_begins(result, answer)
            left += 1
        else:
            assert_same(result, answer)
    assert 3 < left < REQUESTS - 10
    assert sum(counted(engine, stage)["preemptions"] for stage in AR) > 0
