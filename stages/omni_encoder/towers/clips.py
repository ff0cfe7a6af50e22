"""Clips of sound, cut into chunks: where frames and tokens are in a batch, all that follows from the clips' lengths.

A tower's convolutions see chunks of mel frames, with zeros behind the last of a clip. Each chunk gives a row of tokens, of which
those are kept that saw a frame. Tokens attend to those of their clip that are in the same run of chunks. They may be pooled then.

Shape legend: C chunks, F mel frames of a chunk, M mel bins, T tokens of the clips, E embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How a tower cuts clips.

    frames: mel frames of a full chunk. convolutions: of stride 2. run: chunks whose tokens attend to each other. pool: tokens of an
    embedding; those left over at the end of a clip give none.
    """

    frames: int
    convolutions: int
    run: int = 1
    pool: int = 1

    def count(self, frames: int) -> int:
        """Chunks of a clip."""
        return -(-frames // self.frames)

    def row(self, frames: int) -> int:
        """Tokens of a chunk."""
        return -(-frames // (1 << self.convolutions))

    def tokens(self, frames: int) -> int:
        """Tokens of a clip."""
        full, rest = divmod(frames, self.frames)
        return full * self.row(self.frames) + self.row(rest)

    def embeddings(self, frames: int) -> int:
        """Embeddings of a clip."""
        return self.tokens(frames) // self.pool

    def longest(self, embeddings: int) -> int:
        """Frames of a clip that becomes `embeddings`, its tokens seeing as many as they can."""
        full, rest = divmod(embeddings * self.pool, self.row(self.frames))
        return full * self.frames + (rest << self.convolutions)


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """A batch whose clips `[M, frames]` lie one behind the other.

    chunks_C3: int64, of each chunk: the place of its first value; frames of its clip; its own frames. tokens_T: int64, places of
    the tokens in all chunks' rows. firsts_E: int64, among the tokens, the first of each embedding. sizes: embeddings of each clip.
    segments: lengths, T in all.
    """

    chunks_C3: NDArray[np.int64]
    tokens_T: NDArray[np.int64]
    firsts_E: NDArray[np.int64]
    sizes: tuple[int, ...]
    segments: tuple[int, ...]


def lay_out(frames: Sequence[int], bins: int, chunks: Chunks, padded: int) -> ClipBatch:
    """frames: of each clip. bins: mel bins. padded: frames that chunks are padded to, no more than a full one's."""
    row, most = chunks.row(padded), chunks.row(chunks.frames) * chunks.run
    table: list[tuple[int, int, int]] = []
    tokens, firsts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    segments: list[int] = []
    start = first = 0
    for count in frames:
        for begin in range(0, count, chunks.frames):
            own = min(chunks.frames, count - begin)
            tokens.append(np.arange(chunks.row(own)) + row * len(table))
            table.append((start + begin, count, own))
        size = chunks.tokens(count)
        segments += [min(most, size - done) for done in range(0, size, most)]
        firsts.append(first + chunks.pool * np.arange(chunks.embeddings(count)))
        start, first = start + bins * count, first + size
    return ClipBatch(
        np.array(table, np.int64).reshape(-1, 3),
        np.concatenate(tokens),
        np.concatenate(firsts),
        tuple(len(part) for part in firsts[1:]),
        tuple(segments),
    )


def cut(values: Tensor, chunks_C3: Tensor, frames_F: Tensor, bins: int) -> Tensor:
    """`[C, M, F]`: the chunks of a batch, with zeros behind the frames of each.

    values: `[n]`, the clips as `ClipBatch` says. chunks_C3: its own. frames_F: int64, 0, 1, ... All on one device.
    """
    starts_C11, strides_C11, lengths_C11 = (column[:, None, None] for column in chunks_C3.unbind(1))
    bins_M1 = torch.arange(bins, device=values.device)[:, None]
    behind_C1F = frames_F >= lengths_C11
    places_CMF = (starts_C11 + bins_M1 * strides_C11 + frames_F).masked_fill(behind_C1F, 0)
    return values.index_select(0, places_CMF.flatten()).view(places_CMF.shape).masked_fill(behind_C1F, 0)
