"""Tiny Qwen3-Omnis of different sizes, and requests of every kind, for tests that compare devices."""

from typing import Any

from omni.frontend.base import Chat
from omni.sampling import SamplingParams
from support.reference import sizes
from support.reference_chats import chat, picture, says, sound

SHAPES: dict[str, dict[str, Any]] = {
    "as written": sizes(seed=91, stop_gain=0.5, codec_stop_gain=0.5),
    "other sizes": sizes(
        seed=92, layers=4, heads=8, kv_heads=2, head_dim=24, experts=8, top_k=3, accept_hidden_layer=2, groups=8,
        deepstack=(0, 1, 2), stop_gain=0.5, codec_stop_gain=0.5, talker_experts=6, talker_top_k=3, predictor_layers=1,
        upsample_rates=(5, 4),
    ),
}  # fmt: skip
CHATS: list[Chat] = [
    chat(picture(64, 96, 1), sound(1.3, 1), "which is it", max_text=24, max_codes=40),
    chat("hello world", voice="aiden", max_text=16, max_codes=50),
    chat(
        says("system", "be kind"),
        says("user", sound(0.6, 2)),
        says("assistant", "one"),
        says("user", picture(64, 64, 2)),
        voice="chelsie",
        max_text=12,
        max_codes=30,
    ),
    chat(
        "hello",
        sound(0.8, 3),
        max_text=20,
        max_codes=40,
        thinker=SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=1, repetition_penalty=1.1),
        talker=SamplingParams(temperature=0.9, top_k=50, seed=2),
    ),
    chat("only write", picture(32, 64, 3), voice=None, max_text=20),
]
