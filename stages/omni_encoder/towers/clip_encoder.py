"""A tower that encodes clips of sound."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_encoder.segments import Segments, bounds_input
from omni_encoder.towers.attention import NOT_ASKED, use_segments
from omni_encoder.towers.clips import Chunks, cut, lay_out


class ClipEncoder(EncoderModel):
    """Items: `features`, float32 `[mel bins, frames]`; if its chunks are not padded to full ones, also `chunk`, an
    int64 scalar on the host: the number of frames that they are padded to. Outputs: `embeddings` `[n, D]`.

    A tower's convolutions see the padding of a chunk, so it affects the outputs.
    """

    def __init__(self, tower: PreTrainedModel, chunks: Chunks) -> None:
        """tower: a tower of transformers that takes cut chunks and the places of tokens in them. It is modified."""
        super().__init__()
        use_segments(tower)
        self.tower: Any = tower
        self.chunks = chunks

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        """Batches of short clips, whose chunks are not padded to full ones, cannot be padded."""
        if any(self._padding(item) != self.chunks.frames for item in items):
            return None
        count = sum(self.chunks.count(item["features"].shape[1]) for item in items)
        return count * self.chunks.embeddings(self.chunks.frames)

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        bins, pool = self.tower.num_mel_bins, self.chunks.pool
        features = tuple(item["features"] for item in items)
        frames = [feature.shape[1] for feature in features]
        padded = self._padding(items[0]) if items else self.chunks.frames
        batch = lay_out(frames, bins, self.chunks, padded)
        if length is None:
            count, values = len(batch.chunks_C3), bins * sum(frames)
            tokens, firsts = len(batch.tokens_T), len(batch.firsts_E)
        else:
            count = max(length // self.chunks.embeddings(self.chunks.frames), 1)
            values, tokens = count * bins * padded, count * self.chunks.row(padded)
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

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        pooled = {"pool_indices": inputs["firsts"]} if "firsts" in inputs else {}
        out = self.tower(
            padded_feature=cut(inputs["features"], inputs["chunks"], inputs["frames"], self.tower.num_mel_bins),
            chunk_lengths=inputs["chunks"][:, 2],
            valid_indices=inputs["tokens"],
            cu_seqlens=Segments(inputs["bounds"], segments),
            max_seqlen=NOT_ASKED,
            **pooled,
        )
        return {"embeddings": out.last_hidden_state}

    def largest_item(self, length: int) -> SampleItem:
        frames = self.chunks.longest(length)
        features = torch.zeros((self.tower.num_mel_bins, frames), device="cpu")
        return SampleItem(self.chunks.embeddings(frames), {"features": features})

    def _padding(self, item: Mapping[str, Tensor]) -> int:
        return int(item["chunk"].numpy()) if "chunk" in item else self.chunks.frames
