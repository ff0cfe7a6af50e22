"""The audio and vision towers, from transformers as they are."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omni.checkpoint import Checkpoint
from omni.checkpoint.json_file import read_optional_object
from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_encoder.model import EncoderModel, SampleItem
from omni_qwen3_omni.config import read_config

_CONVOLUTIONS = 3
_STRIDE = 2**_CONVOLUTIONS
"""Mel frames per audio token within a chunk."""


class AudioEncoder(EncoderModel):
    """Items: `features` `[mel bins, frames]`, and on the host `chunk`, int64 scalar: what chunks of features are padded to.

    Outputs: `embeddings` `[n, D]`. The tower's convolutions see the padding of a chunk, so it is part of what is encoded.
    """

    host_inputs = frozenset({"chunk"})

    def __init__(self, tower: Qwen3OmniMoeAudioEncoder) -> None:
        super().__init__()
        self.tower = tower

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Mapping[str, Tensor]]:
        features = [item["features"] for item in items]
        chunk, device = int(items[0]["chunk"]), features[0].device  # on the host: nothing is waited for
        chunks = [part for f in features for part in f.split(2 * self.tower.n_window, 1)]
        padded = torch.stack([pad(part, (0, chunk - part.shape[1])) for part in chunks])
        out = self.tower(
            torch.cat(features, 1),
            feature_lens=torch.tensor([f.shape[1] for f in features], device=device),
            padded_feature=padded,
            chunk_lengths=torch.tensor([part.shape[1] for part in chunks], device=device),
        ).last_hidden_state
        sizes = [encoded_frames(f.shape[1], self.tower.n_window) for f in features]
        return [{"embeddings": part} for part in out.split(sizes)]

    def largest_item(self, length: int) -> SampleItem:
        chunk = 2 * self.tower.n_window
        full, rest = divmod(length, _strided(chunk))
        frames = full * chunk + min(_STRIDE * rest, chunk)
        features = torch.zeros((self.tower.num_mel_bins, frames), device="cpu")
        return SampleItem(
            encoded_frames(frames, self.tower.n_window), {"features": features, "chunk": torch.tensor(chunk)}
        )


class VisionEncoder(EncoderModel):
    """Items: `pixels` `[patches, values]` and `grid` int64 `[3]`. Outputs: `embeddings` `[n, D]`, `deepstack` `[levels, n, D]`.

    max_pixels: what the processor shrinks pictures to; None if it does not.
    """

    def __init__(self, tower: Qwen3OmniMoeVisionEncoder, max_pixels: int | None = None) -> None:
        super().__init__()
        self.tower = tower
        self._max_pixels = max_pixels

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Mapping[str, Tensor]]:
        pixels = torch.cat([item["pixels"] for item in items]).to(self.tower.dtype)
        grids = torch.stack([item["grid"] for item in items])
        out = self.tower(pixels, grid_thw=grids)
        sizes = [item["pixels"].shape[0] // self.tower.spatial_merge_unit for item in items]
        embeddings = out.pooler_output.split(sizes)
        levels = torch.stack(list(out.deepstack_features)).split(sizes, dim=1)
        return [{"embeddings": e, "deepstack": d} for e, d in zip(embeddings, levels, strict=True)]

    def largest_item(self, length: int) -> SampleItem:
        merge, patch = self.tower.spatial_merge_size, self.tower.patch_size
        if self._max_pixels is not None:
            length = max(min(length, self._max_pixels // (merge * patch) ** 2), 1)
        height = math.isqrt(length)
        width = length // height
        grid = torch.tensor([1, height * merge, width * merge])
        values = self.tower.patch_embed.proj.weight[0].numel()
        pixels = torch.zeros((height * width * merge**2, values), device="cpu")
        return SampleItem(height * width, {"pixels": pixels, "grid": grid})


def encoded_frames(frames: int, window: int) -> int:
    """Audio tokens of a clip of `frames` mel frames: three stride-2 convolutions over chunks of `2 * window` frames."""
    full, rest = divmod(frames, 2 * window)
    return full * _strided(2 * window) + (_strided(rest) if rest else 0)


def _strided(frames: int) -> int:
    for _ in range(_CONVOLUTIONS):
        frames = (frames - 1) // 2 + 1
    return frames


def padded_chunk(frames: Sequence[int], window: int) -> int:
    """Frames that the published processor pads the chunks of a request's clips to: those of the longest clip's first chunk."""
    return min(max(frames), 2 * window)


def build_audio(context: StageContext) -> AudioEncoder:
    """The checkpoint's audio tower on the context's device."""
    config = read_config(context.checkpoint).hf.thinker_config.audio_config
    with context.device.torch_device:
        tower = Qwen3OmniMoeAudioEncoder._from_config(config, dtype=context.dtype).eval()
    load_weights(tower, context, {"thinker.audio_tower.": ""})
    return AudioEncoder(tower)


def build_vision(context: StageContext) -> VisionEncoder:
    """The checkpoint's vision tower on the context's device."""
    config = read_config(context.checkpoint).hf.thinker_config.vision_config
    with context.device.torch_device:
        tower = Qwen3OmniMoeVisionEncoder._from_config(config, dtype=context.dtype).eval()
    load_weights(tower, context, {"thinker.visual.": ""})
    return VisionEncoder(tower, _max_pixels(context.checkpoint))


def _max_pixels(checkpoint: Checkpoint) -> int | None:
    settings = read_optional_object(checkpoint.path / "preprocessor_config.json")
    most = settings.get("max_pixels", settings.get("size", {}).get("longest_edge"))
    return int(most) if most is not None else None
