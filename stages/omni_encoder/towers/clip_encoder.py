"""A tower that encodes clips of sound, cut into chunks. The indexes of frames and tokens in a batch follow from the clips' lengths.

A tower's convolutions see chunks of mel frames, with zeros after a clip's last frame. Of the tokens that each chunk gives,
those that saw a frame are kept. A token attends to the tokens of its clip in the same run of chunks. Tokens may then be pooled.

Shape legend: C chunks, F mel frames of a chunk, M mel bins, T tokens of the clips, E embeddings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from omni_encoder.layers import ClipLayer
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_encoder.segments import bounds_input
from omni_encoder.towers.configs import ClipTowerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The chunks of a tower's clips. frames: mel frames of a full chunk. convolutions: number of convolutions of stride 2.
    run: chunks whose tokens attend to each other. pool: tokens per embedding; remaining tokens at the end of a clip give none."""

    frames: int
    convolutions: int
    run: int = 1
    pool: int = 1

    def count(self, frames: int) -> int:
        return -(-frames // self.frames)

    def chunk_tokens(self, frames: int) -> int:
        """Number of tokens of a chunk."""
        return -(-frames // (1 << self.convolutions))

    def tokens(self, frames: int) -> int:
        full, rest = divmod(frames, self.frames)
        return full * self.chunk_tokens(self.frames) + self.chunk_tokens(rest)

    def embeddings(self, frames: int) -> int:
        return self.tokens(frames) // self.pool

    def longest(self, embeddings: int) -> int:
        """Maximum frames of a clip with `embeddings` embeddings."""
        full, rest = divmod(embeddings * self.pool, self.chunk_tokens(self.frames))
        return full * self.frames + (rest << self.convolutions)


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """A batch whose clips `[M, frames]` are consecutive in memory. chunks_C3: int64, for each chunk: the index of its first value,
    the frames of its clip, and its own frames. tokens_T: int64, indexes of the kept tokens among those of all chunks. firsts_E:
    int64, index of each embedding's first token. sizes: embeddings of each clip. segments: lengths of segments, T in total."""

    chunks_C3: NDArray[np.int64]
    tokens_T: NDArray[np.int64]
    firsts_E: NDArray[np.int64]
    sizes: tuple[int, ...]
    segments: tuple[int, ...]


def lay_out(frames: Sequence[int], bins: int, chunks: Chunks, padded: int) -> ClipBatch:
    """frames: mel frames of each clip. bins: mel bins. padded: frames that chunks are padded to, at most a full chunk's."""
    chunk_tokens, most = chunks.chunk_tokens(padded), chunks.chunk_tokens(chunks.frames) * chunks.run
    table: list[tuple[int, int, int]] = []
    tokens, firsts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    segments: list[int] = []
    start = first = 0
    for count in frames:
        for begin in range(0, count, chunks.frames):
            own = min(chunks.frames, count - begin)
            tokens.append(np.arange(chunks.chunk_tokens(own)) + chunk_tokens * len(table))
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
    """`[C, M, F]`: the chunks of a batch, with zeros after the frames of each. values: `[n]`, the clips of a `ClipBatch`.
    chunks_C3: as there. frames_F: int64, 0, 1, ... All on one device."""
    starts_C11, strides_C11, _ = (column[:, None, None] for column in chunks_C3.unbind(1))
    bins_M1 = torch.arange(bins, device=values.device)[:, None]
    behind_C1F = behind(chunks_C3, frames_F)
    indexes_CMF = (starts_C11 + bins_M1 * strides_C11 + frames_F).masked_fill(behind_C1F, 0)
    return values.index_select(0, indexes_CMF.flatten()).view(indexes_CMF.shape).masked_fill(behind_C1F, 0)


def behind(chunks_C3: Tensor, frames_F: Tensor) -> Tensor:
    """bool `[C, 1, F]`: which frames are after those of their chunk. chunks_C3, frames_F: as for `cut`."""
    return frames_F >= chunks_C3[:, 2, None, None]


def clip_layers(config: ClipTowerConfig, *, key_bias: bool) -> nn.ModuleList:
    """The layers of a tower. key_bias: as in `ClipAttention`."""
    heads, inner, activation = config.encoder_attention_heads, config.encoder_ffn_dim, config.activation_function
    return nn.ModuleList(
        ClipLayer(config.d_model, heads, inner, activation, key_bias=key_bias) for _ in range(config.encoder_layers)
    )


class ClipEncoder(EncoderModel):
    """Items: `features`, float32 `[mel bins, frames]`; if its chunks are not padded to full ones, also `chunk`, an int64 scalar on
    the host: the number of frames that they are padded to, which affects the outputs.

    Inputs of `encode`, which families implement: `features`, the values of all clips; `chunks`, `tokens` and, if the tower pools,
    `firsts`, as in `ClipBatch`; `frames`, int64, 0, 1, ... for the frames of a padded chunk; `bounds`, as in `Segments`.
    """

    def __init__(self, bins: int, chunks: Chunks) -> None:
        """bins: the number of mel bins."""
        super().__init__()
        self.bins = bins
        self.chunks = chunks

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        """Batches of short clips, whose chunks are not padded to full ones, cannot be padded."""
        if any(self._padding(item) != self.chunks.frames for item in items):
            return None
        count = sum(self.chunks.count(item["features"].shape[1]) for item in items)
        return count * self.chunks.embeddings(self.chunks.frames)

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        bins, pool = self.bins, self.chunks.pool
        features = tuple(item["features"] for item in items)
        frames = [feature.shape[1] for feature in features]
        padded = self._padding(items[0]) if items else self.chunks.frames
        batch = lay_out(frames, bins, self.chunks, padded)
        if length is None:
            count, values = len(batch.chunks_C3), bins * sum(frames)
            tokens, firsts = len(batch.tokens_T), len(batch.firsts_E)
        else:
            count = max(length // self.chunks.embeddings(self.chunks.frames), 1)
            values, tokens = count * bins * padded, count * self.chunks.chunk_tokens(padded)
            firsts = tokens // pool
        inputs = {
            "features": EncoderInput((values,), torch.float32, features),
            "chunks": EncoderInput((count, 3), torch.int64, (batch.chunks_C3,)),
            "tokens": EncoderInput((tokens,), torch.int64, (batch.tokens_T,)),
            "frames": EncoderInput.of(np.arange(padded)),
            "bounds": bounds_input(batch.segments, tokens),
        }
        if pool > 1:
            inputs["firsts"] = EncoderInput((firsts,), torch.int64, (batch.firsts_E,))
        return EncodePlan(inputs, batch.sizes, batch.segments if length is None else None)

    def cut(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """`[C, M, F]`: the chunks of a batch. inputs: of `encode`."""
        return cut(inputs["features"], inputs["chunks"], inputs["frames"], self.bins)

    def largest_item(self, length: int) -> SampleItem:
        frames = self.chunks.longest(length)
        features = torch.zeros((self.bins, frames), dtype=torch.float32, device="cpu")
        return SampleItem(self.chunks.embeddings(frames), {"features": features})

    def _padding(self, item: Mapping[str, Tensor]) -> int:
        return int(item["chunk"].numpy()) if "chunk" in item else self.chunks.frames
