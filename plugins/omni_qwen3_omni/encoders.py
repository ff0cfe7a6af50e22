"""The audio and vision towers, from transformers as they are."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_encoder.model import EncoderModel
from omni_qwen3_omni.config import read_config


class AudioEncoder(EncoderModel):
    """Items: `features` `[mel bins, frames]`. Outputs: `embeddings` `[n, D]`."""

    def __init__(self, tower: Qwen3OmniMoeAudioEncoder) -> None:
        super().__init__()
        self.tower = tower

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Mapping[str, Tensor]]:
        features = [item["features"] for item in items]
        device = features[0].device
        lengths = torch.tensor([f.shape[1] for f in features], device=device)
        out = self.tower(torch.cat(features, 1), feature_lens=lengths).last_hidden_state
        sizes = [encoded_frames(f.shape[1], self.tower.n_window) for f in features]
        return [{"embeddings": part} for part in out.split(sizes)]


class VisionEncoder(EncoderModel):
    """Items: `pixels` `[patches, values]` and `grid` int64 `[3]`. Outputs: `embeddings` `[n, D]`, `deepstack` `[levels, n, D]`."""

    def __init__(self, tower: Qwen3OmniMoeVisionEncoder) -> None:
        super().__init__()
        self.tower = tower

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Mapping[str, Tensor]]:
        pixels = torch.cat([item["pixels"] for item in items]).to(self.tower.dtype)
        grids = torch.stack([item["grid"] for item in items])
        out = self.tower(pixels, grid_thw=grids)
        sizes = [item["pixels"].shape[0] // self.tower.spatial_merge_unit for item in items]
        embeddings = out.pooler_output.split(sizes)
        levels = torch.stack(list(out.deepstack_features)).split(sizes, dim=1)
        return [{"embeddings": e, "deepstack": d} for e, d in zip(embeddings, levels, strict=True)]


def encoded_frames(frames: int, window: int) -> int:
    """Audio tokens of a clip of `frames` mel frames: three stride-2 convolutions over chunks of `2 * window` frames."""
    full, rest = divmod(frames, 2 * window)
    return full * _strided(2 * window) + (_strided(rest) if rest else 0)


def _strided(frames: int) -> int:
    for _ in range(3):
        frames = (frames - 1) // 2 + 1
    return frames


def audio_batch_key(frames: int, window: int) -> int:
    """Clips with equal keys may share a batch without changing each other's result.

    The tower pads a batch's chunks to the longest one, and its convolutions see the padding; a full chunk is the longest there is.
    """
    return min(frames, 2 * window)


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
    return VisionEncoder(tower)
