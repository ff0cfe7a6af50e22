"""Payloads of edges: tensors that stay where they were made, and small structs that describe them."""

from omni.payload.outputs import AudioChunk, Encoded, GeneratedTokens, TokenLogprobs
from omni.payload.payload import PageSlice, Payload

__all__ = ["AudioChunk", "Encoded", "GeneratedTokens", "PageSlice", "Payload", "TokenLogprobs"]
