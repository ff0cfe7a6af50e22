"""Adapters for edges into and out of autoregressive stages. An edge names one: `"omni_ar.adapters:FramesToCodes"`."""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from omni.payload import CodecFrames, Encoded, GeneratedTokens, Payload
from omni_ar.inputs import MultimodalEmbedding, TokenCodes
from omni_frames.request import CodeFrames


class _PerPayload:
    """Reads each payload by itself, and no arguments."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        pass

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


class EncodedToEmbedding(_PerPayload):
    """An encoder's output for an item fills the prompt's embedding of the same index. name: the embedding's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def push(self, payload: Payload) -> Sequence[Payload]:
        assert isinstance(payload.meta, Encoded)
        return (Payload(MultimodalEmbedding(name=self._name, index=payload.meta.index), payload.tensors),)


def audio_embeddings(args: msgspec.Struct | None) -> EncodedToEmbedding:
    return EncodedToEmbedding("audio")


def image_embeddings(args: msgspec.Struct | None) -> EncodedToEmbedding:
    return EncodedToEmbedding("image")


class FramesToCodes(_PerPayload):
    """Passes codec frames to a stage that reads code frames, and drops the tokens' ids."""

    def push(self, payload: Payload) -> Sequence[Payload]:
        if not isinstance(payload.meta, TokenCodes):
            return ()
        return (Payload(CodeFrames(count=payload.tensors["codes"].shape[0]), payload.tensors),)


class TokensToCodes(_PerPayload):
    """Turns each token, except the end token, into a frame of one code, for a stage that reads code frames."""

    def push(self, payload: Payload) -> Sequence[Payload]:
        assert isinstance(payload.meta, GeneratedTokens)
        ids = payload.meta.ids[:-1] if payload.meta.ends else payload.meta.ids
        if not ids:
            return ()
        return (Payload(CodeFrames(count=len(ids), codes=np.array(ids)[:, None])),)


class FramesForUsers(_PerPayload):
    """Adapter of an output: passes codec frames to the user, and drops the tokens' ids."""

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (Payload(CodecFrames(), payload.tensors),) if isinstance(payload.meta, TokenCodes) else ()


class TokensForUsers(_PerPayload):
    """Adapter of an output: gives each token, except the end token, as a frame of one code."""

    def push(self, payload: Payload) -> Sequence[Payload]:
        if not isinstance(payload.meta, GeneratedTokens):
            return ()
        ids = payload.meta.ids[:-1] if payload.meta.ends else payload.meta.ids
        return (Payload(CodecFrames(), {"codes": torch.tensor(ids)[:, None]}),) if ids else ()
