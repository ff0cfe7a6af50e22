"""What a user can be given: the host payloads of output stages."""

import msgspec
import numpy as np
from numpy.typing import NDArray


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Generated token ids, in order, each sent once, confirmed."""

    ids: tuple[int, ...]


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive samples of one request's waveform. samples: float32 `[n]` in [-1, 1], n may be 0. sample_rate: Hz."""

    samples: NDArray[np.float32]
    sample_rate: int
