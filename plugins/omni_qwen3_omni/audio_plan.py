"""Where the chunks and tokens of clips are in a batch of the audio tower: all that follows from their lengths.

The tower's convolutions see chunks of `2 * window` mel frames, with zeros behind the last of a clip. Each chunk gives a row of
tokens, of which those are kept that saw a frame. Tokens attend to those of their clip that are in the same run of chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONVOLUTIONS = 3
STRIDE = 2**CONVOLUTIONS
"""Mel frames per token within a chunk."""


@dataclass(frozen=True, slots=True)
class AudioBatch:
    """Shape legend: C chunks, N tokens of the clips, P tokens with padding.

    chunks_C3: int64, of each chunk: the place of its first value, where clips `[mel bins, frames]` lie one behind the other; frames
    of its clip; its own frames, 0 if it pads the batch.
    tokens_P: int64, places of the tokens in all chunks' rows. sizes: tokens of each clip. segments: lengths, N in all.
    """

    chunks_C3: NDArray[np.int64]
    tokens_P: NDArray[np.int64]
    sizes: tuple[int, ...]
    segments: tuple[int, ...]


def lay_out(frames: Sequence[int], bins: int, window: int, chunk: int, run: int, chunks: int | None) -> AudioBatch:
    """frames: of each clip. chunk: frames that chunks are padded to. run: chunks whose tokens attend to each other.
    chunks: to pad the batch to; None pads nothing."""
    width, row = 2 * window, strided(chunk)
    table: list[tuple[int, int, int]] = []
    tokens: list[NDArray[np.int64]] = []
    sizes: list[int] = []
    segments: list[int] = []
    start = 0
    for count in frames:
        size = encoded_frames(count, window)
        for first in range(0, count, width):
            length = min(width, count - first)
            tokens.append(np.arange(strided(length)) + row * len(table))
            table.append((start + first, count, length))
        most = strided(width) * run
        segments += [min(most, size - first) for first in range(0, size, most)]
        sizes.append(size)
        start += bins * count
    chunks_C3 = np.zeros((len(table) if chunks is None else chunks, 3), np.int64)
    chunks_C3[: len(table)] = np.array(table).reshape(-1, 3)
    used = sum(sizes)
    tokens_P = np.zeros(used if chunks is None else chunks * row, np.int64)
    tokens_P[:used] = np.concatenate([*tokens, np.empty(0, np.int64)])
    return AudioBatch(chunks_C3, tokens_P, tuple(sizes), tuple(segments))


def count_chunks(frames: int, window: int) -> int:
    """Chunks of a clip of `frames` mel frames."""
    return -(-frames // (2 * window))


def encoded_frames(frames: int, window: int) -> int:
    """Audio tokens of a clip of `frames` mel frames: three stride-2 convolutions over chunks of `2 * window` frames."""
    full, rest = divmod(frames, 2 * window)
    return full * strided(2 * window) + (strided(rest) if rest else 0)


def strided(frames: int) -> int:
    """Tokens of a chunk."""
    for _ in range(CONVOLUTIONS):
        frames = (frames - 1) // 2 + 1
    return frames


def padded_chunk(frames: Sequence[int], window: int) -> int:
    """Frames that the published processor pads the chunks of a request's clips to: those of the longest clip's first chunk."""
    return min(max(frames), 2 * window)
