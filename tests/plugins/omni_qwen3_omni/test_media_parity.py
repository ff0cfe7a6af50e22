"""Sounds and pictures of every size against transformers, and outputs of encoders that requests share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

from omni_qwen3_omni.audio_plan import encoded_frames
from tests.support.omni_engine import OmniEngine, assert_parity
from tests.support.reference import chat, picture, says, sizes, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few

SHAPE = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)
# Around one chunk of the tower (100 frames, 1 s), several, and past its attention window (800 frames).
SECONDS = [0.05, 0.26, 0.99, 1.0, 1.01, 2.0, 3.33, 8.5]
SIZES = [(32, 32), (33, 47), (300, 40), (20, 390), (640, 480), (224, 224)]


@pytest.fixture(scope="module", params=few(1, [True, False], SLOW), ids=["captured", "eager"])
def engine(request: pytest.FixtureRequest) -> OmniEngine:
    overrides: dict[str, object] = {"audio_encoder.max_batch_items": 3, "vision_encoder.max_batch_items": 2}
    return OmniEngine(tiny_checkpoint(**SHAPE), overrides, graphs=request.param)


def test_parity_of_sounds_of_every_length(engine: OmniEngine) -> None:
    """All at once, so that clips of different requests share batches of the tower."""
    chats = [chat("what is it", sound(seconds, i), max_text=8, max_codes=5) for i, seconds in enumerate(SECONDS)]

    assert_parity(engine, chats)


def test_parity_of_pictures_of_every_size(engine: OmniEngine) -> None:
    chats = [chat("what is it", picture(*size, i), max_text=8, max_codes=5) for i, size in enumerate(SIZES)]

    assert_parity(engine, chats)


def test_parity_where_the_cache_gives_the_embeddings(engine: OmniEngine) -> None:
    """The same media in other places, after others, and twice in one request."""
    clip, view = sound(1.2, 90), picture(64, 96, 90)
    chats = [
        chat("what is it", clip, view, max_text=8, max_codes=5),
        chat(view, "and", clip, "and", view, max_text=8, max_codes=5),
        chat(says("user", clip), says("assistant", "one"), says("user", view, "or", clip), max_text=8, max_codes=5),
    ]

    results = [result for asked in chats for result in assert_parity(engine, [asked])]

    for result, items in zip(results[1:], (2, 1), strict=True):
        for stage in ("audio_encoder", "vision_encoder"):
            assert result.stages[stage].counts["cached"] == result.stages[stage].counts["items"]
        assert result.stages["vision_encoder"].counts["items"] == items


@pytest.mark.parametrize("seconds", [(0.5, 1.0), (1.0, 0.5), (0.9, 0.3, 0.55), (0.37, 2.3)])
def test_parity_of_short_clips_beside_longer_ones(engine: OmniEngine, seconds: tuple[float, ...]) -> None:
    """transformers pads a request's clips to the longest one's first chunk, and its convolutions read the padding."""
    clips = [sound(length, 95 + index) for index, length in enumerate(seconds)]
    asked = chat(*clips, "what is it", max_text=8, max_codes=5)

    assert_parity(engine, [asked])


@given(frames=st.integers(1, 30_000))
def test_audio_tokens_are_as_many_as_in_transformers(frames: int) -> None:
    """Its own formula holds for chunks of 100 frames only."""
    assert encoded_frames(frames, 50) == int(_get_feat_extract_output_lengths(torch.tensor([frames])))
