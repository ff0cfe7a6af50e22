"""Payloads of edges, and outputs for users."""

from omni.payload.payload import (
    AudioChunk,
    CodecFrames,
    Encoded,
    GeneratedTokens,
    PageSlice,
    Payload,
    RequestHiddenStates,
    TokenLogprobs,
)

__all__ = [
    "AudioChunk",
    "CodecFrames",
    "Encoded",
    "GeneratedTokens",
    "PageSlice",
    "Payload",
    "RequestHiddenStates",
    "TokenLogprobs",
]
