"""The audio and vision towers, from transformers as they are."""

import copy
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omni.checkpoint import Checkpoint
from omni.checkpoint.json_file import read_optional_object
from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_encoder.segments import Segments, bounds_input
from omni_qwen3_omni import audio_plan, vision_plan
from omni_qwen3_omni.audio_plan import STRIDE, encoded_frames, strided
from omni_qwen3_omni.config import read_config
from omni_qwen3_omni.segments import use_segments

_NOT_ASKED = 0
"""Longest segment: a tower that was given one does not ask the device, and `Segments` does without."""


class AudioEncoder(EncoderModel):
    """Items: `features` float32 `[mel bins, frames]`, and on the host `chunk`, int64 scalar: what chunks of features are padded to.

    Outputs: `embeddings` `[n, D]`. The tower's convolutions see the padding of a chunk, so it is part of what is encoded.
    """

    def __init__(self, tower: Qwen3OmniMoeAudioEncoder) -> None:
        super().__init__()
        use_segments(tower)
        self.tower = tower
        self._chunk = 2 * tower.n_window
        self._run = tower.n_window_infer // self._chunk

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        """Batches of short clips, whose chunks are not padded to full ones, are as they are."""
        if any(int(item["chunk"].numpy()) != self._chunk for item in items):
            return None
        frames = [item["features"].shape[1] for item in items]
        return strided(self._chunk) * sum(audio_plan.count_chunks(count, self.tower.n_window) for count in frames)

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        bins, window = self.tower.num_mel_bins, self.tower.n_window
        features = tuple(item["features"] for item in items)
        chunk = int(items[0]["chunk"].numpy()) if items else self._chunk
        chunks = None if length is None else max(length // strided(self._chunk), 1)
        frames = [feature.shape[1] for feature in features]
        batch = audio_plan.lay_out(frames, bins, window, chunk, self._run, chunks)
        values = bins * (sum(frames) if chunks is None else chunks * chunk)
        inputs = {
            "features": EncoderInput((values,), torch.float32, features),
            "chunks": EncoderInput.of(batch.chunks_C3),
            "tokens": EncoderInput.of(batch.tokens_P),
            "frames": EncoderInput.of(np.arange(chunk)),
            "bounds": bounds_input(batch.segments, batch.tokens_P.size),
        }
        return EncodePlan(inputs, batch.sizes, batch.segments if length is None else None)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        out = self.tower(
            padded_feature=self._chunks(inputs["features"], inputs["chunks"], inputs["frames"]),
            chunk_lengths=inputs["chunks"][:, 2],
            valid_indices=inputs["tokens"],
            cu_seqlens=Segments(inputs["bounds"], segments),
            max_seqlen=_NOT_ASKED,
        )
        return {"embeddings": out.last_hidden_state}

    def _chunks(self, values: Tensor, chunks_C3: Tensor, frames_F: Tensor) -> Tensor:
        """`[C, mel bins, F]`: the clips' frames, cut into chunks with zeros behind."""
        starts_C, strides_C, lengths_C = (column[:, None, None] for column in chunks_C3.unbind(1))
        bins_M = torch.arange(self.tower.num_mel_bins, device=values.device)[:, None]
        behind_C1F = frames_F >= lengths_C
        places_CMF = (starts_C + bins_M * strides_C + frames_F).masked_fill(behind_C1F, 0)
        return values.index_select(0, places_CMF.flatten()).view(places_CMF.shape).masked_fill(behind_C1F, 0)

    def largest_item(self, length: int) -> SampleItem:
        full, rest = divmod(length, strided(self._chunk))
        frames = full * self._chunk + min(STRIDE * rest, self._chunk)
        features = torch.zeros((self.tower.num_mel_bins, frames), device="cpu")
        return SampleItem(
            encoded_frames(frames, self.tower.n_window), {"features": features, "chunk": torch.tensor(self._chunk)}
        )


class VisionEncoder(EncoderModel):
    """Items: `pixels` float32 `[patches, values]`, and on the host `grid`, int64 `[3]`: frames, and patches down and across.

    Outputs: `embeddings` `[n, D]`, `deepstack` `[levels, n, D]`.

    max_pixels: what the processor shrinks pictures to; None if it does not.
    """

    def __init__(self, tower: Qwen3OmniMoeVisionEncoder, max_pixels: int | None = None) -> None:
        super().__init__()
        use_segments(tower)
        self.tower = tower
        self._max_pixels = max_pixels
        self._values = tower.patch_embed.proj.weight[0].numel()

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        patches = sum(item["pixels"].shape[0] for item in items)
        return patches // int(self.tower.spatial_merge_unit)

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        tower = self.tower
        grids = [tuple(int(count) for count in item["grid"].numpy()) for item in items]
        batch = vision_plan.lay_out_batch(grids, tower.spatial_merge_size, tower.num_grid_per_side)
        sizes = tuple(math.prod(grid) // tower.spatial_merge_unit for grid in grids)
        if length is not None:
            batch = batch.padded(length * tower.spatial_merge_unit)
        pixels = tuple(item["pixels"] for item in items)
        patches = len(batch.positions_P2)
        inputs = {
            "pixels": EncoderInput((patches, self._values), torch.float32, pixels),
            "positions": EncoderInput.of(batch.positions_P2),
            "taps": EncoderInput.of(batch.taps_P4),
            "weights": EncoderInput.of(batch.weights_P4),
            "bounds": bounds_input(batch.segments, patches),
        }
        return EncodePlan(inputs, sizes, batch.segments if length is None else None)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        out = self.tower(
            inputs["pixels"],
            grid_thw=None,
            interp_indices=inputs["taps"],
            interp_weights=inputs["weights"],
            position_ids=inputs["positions"],
            cu_seqlens=Segments(inputs["bounds"], segments),
            max_seqlen=_NOT_ASKED,
        )
        return {"embeddings": out.pooler_output, "deepstack": torch.stack(list(out.deepstack_features))}

    def item_outputs(self, outputs: Mapping[str, Tensor], places: slice) -> Mapping[str, Tensor]:
        return {"embeddings": outputs["embeddings"][places], "deepstack": outputs["deepstack"][:, places]}

    def largest_item(self, length: int) -> SampleItem:
        merge, patch = self.tower.spatial_merge_size, self.tower.patch_size
        if self._max_pixels is not None:
            length = max(min(length, self._max_pixels // (merge * patch) ** 2), 1)
        height = math.isqrt(length)
        width = length // height
        grid = torch.tensor([1, height * merge, width * merge])
        pixels = torch.zeros((height * width * merge**2, self._values), device="cpu")
        return SampleItem(height * width, {"pixels": pixels, "grid": grid})


def build_audio(context: StageContext) -> AudioEncoder:
    """The checkpoint's audio tower on the context's device."""
    # A copy: the tower changes it.
    config = copy.deepcopy(read_config(context.checkpoint).hf.thinker_config.audio_config)
    with context.device.torch_device:
        tower = Qwen3OmniMoeAudioEncoder._from_config(config, dtype=context.dtype).eval()
    load_weights(tower, context, {"thinker.audio_tower.": ""})
    return AudioEncoder(tower)


def build_vision(context: StageContext) -> VisionEncoder:
    """The checkpoint's vision tower on the context's device."""
    config = copy.deepcopy(read_config(context.checkpoint).hf.thinker_config.vision_config)
    with context.device.torch_device:
        tower = Qwen3OmniMoeVisionEncoder._from_config(config, dtype=context.dtype).eval()
    load_weights(tower, context, {"thinker.visual.": ""})
    return VisionEncoder(tower, _max_pixels(context.checkpoint))


def _max_pixels(checkpoint: Checkpoint) -> int | None:
    settings = read_optional_object(checkpoint.path / "preprocessor_config.json")
    most = settings.get("max_pixels", settings.get("size", {}).get("longest_edge"))
    return int(most) if most is not None else None
