"""Outputs for users, the host payloads of output stages; and the payload of encoders."""

import msgspec
import numpy as np
from numpy.typing import NDArray


class GeneratedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Generated token ids, in order, each final and sent once. ends: whether the last id is an end token, which is not part of the
    text."""

    ids: tuple[int, ...]
    ends: bool = False


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of consecutive tokens from the model's own logits, before penalties, temperature and other processing.
    first: index of the first token among the generated tokens, or among the prompt's if `prompt`. ids: int64 `[n, 1 + k]`, each
    token's own id, then the `k` likeliest. logprobs: float32 `[n, 1 + k]`, of these ids. ranks: int64 `[n]`, the token's among all
    ids; 1 is the likeliest."""

    first: int
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int64]
    prompt: bool = False


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive samples of one request's waveform. samples: float32 `[n]` in [-1, 1], n may be 0. sample_rate: Hz."""

    samples: NDArray[np.float32]
    sample_rate: int


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors are the encoder's output for the request's item of this index. They are shared: read only."""

    index: int
