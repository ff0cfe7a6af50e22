"""More than 300 frames."""

import pytest

from tests.support.omni_engine import OmniEngine, assert_parity
from tests.support.reference import chat, reference_of, sizes, tiny_checkpoint

SHAPE = sizes(stop_gain=0.0, codec_stop_gain=0.0, groups=3, predictor_layers=1, talker_layers=1, vocoder_window=9)


@pytest.mark.slow
def test_parity_beyond_300_frames() -> None:
    """The reference decodes all frames at once: cut at 300, as in its `generate`, it would lose samples at the seam."""
    folder = tiny_checkpoint(21, **SHAPE)
    asked = chat("tell me more", max_text=40, max_codes=341)
    answer = reference_of(folder).answer(asked)
    assert answer.codes.shape == (3, 340)

    (result,) = assert_parity(OmniEngine(folder), [asked])

    assert result.stages["code2wav"].counts == {"frames": 340, "samples": answer.wave.size}
    assert len(result.chunks) == 1 + -(-(340 - 10) // 25)
