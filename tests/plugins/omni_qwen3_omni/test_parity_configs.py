"""Parity in other shapes: layers, heads, experts, code groups, accepted layers, vocoder rates."""

from typing import Any

import pytest

from tests.support.omni_engine import OmniEngine, assert_parity
from tests.support.reference import chat, picture, says, sizes, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few

SHAPES: dict[str, dict[str, Any]] = {
    "embeddings accepted, one group pair": sizes(
        layers=2, heads=2, kv_heads=1, experts=6, top_k=3, accept_hidden_layer=0, groups=2, codebook_size=48,
        talker_layers=1, talker_heads=4, talker_kv_heads=2, predictor_layers=1, predictor_heads=2,
    ),
    "accepted among deepstack layers": sizes(
        layers=5, heads=4, kv_heads=4, head_dim=24, accept_hidden_layer=2, vision_layers=5, deepstack=(0, 2, 4),
        groups=6, talker_experts=8, talker_top_k=3, upsample_rates=(5, 4), upsampling_ratios=(2,),
    ),
    "accepted after the last deepstack layer": sizes(
        layers=4, heads=8, kv_heads=2, head_dim=8, hidden_size=96, experts=8, top_k=8, accept_hidden_layer=3,
        deepstack=(0, 1, 2), groups=8, predictor_heads=6, predictor_kv_heads=3, shared_expert_size=80,
    ),
    "last layer accepted, routing weights not normed": sizes(
        layers=3, heads=6, kv_heads=3, accept_hidden_layer=3, experts=5, top_k=4, norm_topk=False, groups=3,
        talker_experts=3, talker_top_k=2, vocoder_layers=3, vocoder_window=5, upsample_rates=(6, 2, 2),
    ),
    "one expert of many, one deepstack level": sizes(
        layers=6, heads=4, kv_heads=1, head_dim=32, experts=16, top_k=1, accept_hidden_layer=1, deepstack=(1,),
        talker_top_k=1, talker_experts=2, shared_expert_size=8, groups=5, talker_head_dim=8, talker_heads=6,
        talker_kv_heads=6, vocoder_heads=4, vocoder_kv_heads=2, vocoder_hidden_size=64,
    ),
    "no norm in the talker's routing either, many groups": sizes(
        layers=3, expert_size=48, accept_hidden_layer=1, norm_topk=False, groups=16, codebook_size=128,
        predictor_layers=3, talker_layers=3, talker_hidden_size=64, audio_layers=3, audio_heads=4,
        upsample_rates=(3, 3), upsampling_ratios=(2, 3), decoder_size=32, deepstack=(2,),
    ),
    "all experts, almost no shared one": sizes(
        layers=4, experts=3, top_k=3, accept_hidden_layer=4, talker_experts=4, talker_top_k=4, shared_expert_size=1,
        groups=4, vision_hidden_size=48, vision_heads=3, deepstack=(2, 1, 0), hidden_size=48,
    ),
}  # fmt: skip

CHATS = [
    chat("hello world, what is it"),
    chat(
        says("system", "you are a voice"),
        says("user", picture(64, 96, 1), sound(1.3, 1), "which one"),
        says("assistant", "the first"),
        says("user", "and this", picture(96, 64, 2), sound(0.4, 2), sound(0.4, 3)),
        voice="chelsie",
    ),
]


@pytest.mark.parametrize("shape", few(1, SHAPES, SLOW))
def test_parity_in_other_shapes(shape: str) -> None:
    seed = list(SHAPES).index(shape) + 100
    folder = tiny_checkpoint(seed, stop_gain=0.0, codec_stop_gain=0.0, **SHAPES[shape])

    for result in assert_parity(OmniEngine(folder), CHATS):
        assert len(set(result.ids)) > 3, "the thinker repeats itself"
        assert len({tuple(group) for group in result.codes.tolist()}) == len(result.codes), "two groups are equal"
