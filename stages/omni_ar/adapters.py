"""What edges into and out of autoregressive stages do in most families. Edges name them: `"omni_ar.adapters:FramesToCodes"`."""

from collections.abc import Sequence

import msgspec
import numpy as np

from omni.payload import Encoded, GeneratedTokens, Payload
from omni_ar.inputs import MultimodalEmbedding, TokenCodes
from omni_frames import CodeFrames


class EncodedToEmbedding:
    """What an encoder made of an item fills the prompt embedding of the same index. name: of the embedding."""

    def __init__(self, name: str) -> None:
        self._name = name

    def push(self, payload: Payload) -> Sequence[Payload]:
        assert isinstance(payload.meta, Encoded)
        return (Payload(MultimodalEmbedding(name=self._name, index=payload.meta.index), payload.tensors),)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


def audio_embeddings(args: msgspec.Struct | None) -> EncodedToEmbedding:
    """Into embeddings called `"audio"`."""
    return EncodedToEmbedding("audio")


def image_embeddings(args: msgspec.Struct | None) -> EncodedToEmbedding:
    """Into embeddings called `"image"`."""
    return EncodedToEmbedding("image")


class FramesToCodes:
    """Each codec frame to a stage that reads code frames; the ids of their first codes are of no use to it."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (Payload(CodeFrames(count=1), payload.tensors),) if isinstance(payload.meta, TokenCodes) else ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


class TokensToCodes:
    """Each token but the one that ends them is a frame of one code, for a stage that reads code frames."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        assert isinstance(payload.meta, GeneratedTokens)
        ids = payload.meta.ids[:-1] if payload.meta.ends else payload.meta.ids
        if not ids:
            return ()
        return (Payload(CodeFrames(count=len(ids), codes=np.array(ids)[:, None])),)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
