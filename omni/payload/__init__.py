"""Payloads of edges, and outputs for users."""

from omni.payload.payload import (
    AudioChunk,
    CodecFrames,
    Encoded,
    GeneratedTokens,
    LogprobsChunk,
    PageSlice,
    Payload,
    RequestHiddenStates,
)

__all__ = [
    "AudioChunk",
    "CodecFrames",
    "Encoded",
    "GeneratedTokens",
    "LogprobsChunk",
    "PageSlice",
    "Payload",
    "RequestHiddenStates",
]
