"""What a user can be given: the host payloads of output stages."""

import msgspec
import numpy as np
from numpy.typing import NDArray


class GeneratedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Generated token ids, in order, each sent once, confirmed.

    ends: the last of them is one that ends the text (an end id), and no part of what it says.
    """

    ids: tuple[int, ...]
    ends: bool = False


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of consecutive tokens, as the model gives them: before penalties, temperature and the like.

    first: index of the first of them among the generated tokens, or among the prompt's if `prompt`.
    ids: int64 `[n, 1 + k]`, each token's own id, then the `k` likeliest. logprobs: float32 `[n, 1 + k]`, of these ids.
    ranks: int64 `[n]`, the token's place among all ids by likelihood; 1 is the likeliest.
    """

    first: int
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int64]
    prompt: bool = False


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive samples of one request's waveform. samples: float32 `[n]` in [-1, 1], n may be 0. sample_rate: Hz."""

    samples: NDArray[np.float32]
    sample_rate: int
