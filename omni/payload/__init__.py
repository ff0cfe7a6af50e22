"""Payloads of edges, and outputs for users."""

from omni.payload.payload import AudioChunk, Encoded, GeneratedTokens, PageSlice, Payload, TokenLogprobs

__all__ = ["AudioChunk", "Encoded", "GeneratedTokens", "PageSlice", "Payload", "TokenLogprobs"]
