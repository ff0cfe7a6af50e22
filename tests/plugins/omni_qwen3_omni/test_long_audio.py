"""More than 300 frames, and any cut of them into chunks."""

import numpy as np
import pytest

from tests.support.omni_engine import TOLERANCE, OmniEngine, Result, assert_parity
from tests.support.reference import chat, reference_of, sizes, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few

SHAPE = sizes(stop_gain=0.0, codec_stop_gain=0.0, groups=3, predictor_layers=1, talker_layers=1, vocoder_window=9)
CHUNKS: list[dict[str, object]] = [
    {"code2wav.first_chunk_frames": 1},
    {"code2wav.chunk_frames": 1},
    {"code2wav.first_chunk_frames": 1, "code2wav.chunk_frames": 1},
    {"code2wav.first_chunk_frames": 3, "code2wav.chunk_frames": 7},
    {"code2wav.chunk_frames": 1000},
    {"code2wav.first_chunk_frames": 1000, "code2wav.chunk_frames": 1000},
]


def test_parity_beyond_300_frames() -> None:
    """The reference decodes all frames at once: cut at 300, as in its `generate`, it would lose samples at the seam."""
    folder = tiny_checkpoint(21, **SHAPE)
    asked = chat("tell me more", max_text=40, max_codes=341)
    answer = reference_of(folder).answer(asked)
    assert answer.codes.shape == (3, 340)

    (result,) = assert_parity(OmniEngine(folder), [asked])

    assert result.stages["code2wav"].counts == {"frames": 340, "samples": answer.wave.size}
    assert len(result.chunks) == 1 + -(-(340 - 10) // 25)


@pytest.fixture(scope="module")
def whole() -> Result:
    """All frames in one chunk."""
    settings = {"code2wav.first_chunk_frames": 1000, "code2wav.chunk_frames": 1000}
    result = OmniEngine(tiny_checkpoint(21, **SHAPE), settings).answer(ASKED)
    assert len(result.chunks) == 1
    return result


ASKED = chat("say it", sound(0.5), max_text=10, max_codes=64)


@pytest.mark.parametrize("chunks", few(2, CHUNKS[2:] + CHUNKS[:2], SLOW), ids=str)
def test_any_chunking_gives_the_same_samples(chunks: dict[str, object], whole: Result) -> None:
    engine = OmniEngine(tiny_checkpoint(21, **SHAPE), {**chunks, "code2wav.max_num_seqs": 2})

    (alone,) = assert_parity(engine, [ASKED])
    beside = engine.run([ASKED, chat("hello", max_codes=40), ASKED], [0, 4, 9])[0]

    peak = np.abs(whole.wave).max()
    for result in (alone, beside):
        assert result.frames == whole.frames
        assert result.wave.shape == whole.wave.shape
        assert np.abs(result.wave - whole.wave).max() < TOLERANCE / 5 * peak
