"""Payloads of edges, and outputs for users."""

from omni.payload.payload import (
    AudioChunk,
    CodecFrames,
    Encoded,
    GeneratedTokens,
    HiddenStates,
    PageSlice,
    Payload,
    TokenLogprobs,
)

__all__ = [
    "AudioChunk",
    "CodecFrames",
    "Encoded",
    "GeneratedTokens",
    "HiddenStates",
    "PageSlice",
    "Payload",
    "TokenLogprobs",
]
