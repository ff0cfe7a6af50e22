"""Requests for the parity tests: sounds, pictures and turns in a few words."""

from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np
from PIL import Image

from omni.frontend.base import AudioPart, Chat, ImagePart, Message, Part, TextPart
from omni.sampling import SamplingParams

SPEECH_RATE = 16000
SPEECH = frozenset({"text", "audio"})
TEXT = frozenset({"text"})


def sound(seconds: float, seed: int = 0, rate: int = SPEECH_RATE) -> AudioPart:
    """A random chord with some noise."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    chord = sum(np.sin(2 * np.pi * hertz * time) for hertz in random.uniform(100, 3000, 3))
    samples = 0.2 * chord + 0.02 * random.standard_normal(len(time))
    return AudioPart(samples.astype(np.float32), "sound")


def picture(width: int, height: int, seed: int = 0) -> ImagePart:
    """Random blocks of color."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
    return ImagePart(Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST), "picture")


def says(role: Literal["system", "user", "assistant"], *parts: str | Part) -> Message:
    return Message(role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def chat(
    *turns: str | Part | Message,
    voice: str | None = "ethan",
    max_text: int = 10,
    max_codes: int = 14,
    thinker: SamplingParams | None = None,
    talker: SamplingParams | None = None,
) -> Chat:
    """A greedy request; `voice` None asks for text only. Parts that stand alone make one user turn."""
    parts = [turn for turn in turns if not isinstance(turn, Message)]
    messages = [turn for turn in turns if isinstance(turn, Message)] or [says("user", *parts)]
    sampling = {
        "thinker": (thinker or SamplingParams()).with_defaults(SamplingParams(temperature=0.0, max_tokens=max_text))
    }
    if voice is not None:
        sampling["talker"] = (talker or SamplingParams()).with_defaults(
            SamplingParams(temperature=0.0, max_tokens=max_codes)
        )
    return Chat(tuple(messages), TEXT if voice is None else SPEECH, voice, sampling)


def with_tokens(asked: Chat) -> Chat:
    """The same request, in whose texts control tokens are tokens."""
    return replace(asked, control_tokens="tokens")


def text_only(asked: Chat) -> Chat:
    """The same request without speech."""
    return replace(asked, modalities=TEXT)


def with_sampling(asked: Chat, stage: str, **fields: Any) -> Chat:
    """The same request with other sampling at one stage."""
    params = msgspec.structs.replace(asked.sampling[stage], **fields)
    return replace(asked, sampling={**asked.sampling, stage: params})
