"""The audio and vision towers, from transformers as they are."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omni.stage import StageContext
from omni_encoder.towers.clip_encoder import ClipEncoder
from omni_encoder.towers.loading import load_tower, read_max_pixels
from omni_encoder.towers.picture_encoder import Patches, PictureEncoder
from omni_qwen3_omni.audio_plan import clip_chunks
from omni_qwen3_omni.config import read_config


class AudioEncoder(ClipEncoder):
    """Items: as in `ClipEncoder`, with `chunk`."""

    def __init__(self, tower: Any) -> None:
        super().__init__(tower, clip_chunks(tower.n_window, tower.n_window_infer))


class VisionEncoder(PictureEncoder):
    """Outputs: `embeddings` `[n, D]`, `deepstack` `[levels, n, D]`; of a tower without levels, only the first."""

    def __init__(self, tower: Any, max_pixels: int | None = None) -> None:
        super().__init__(tower, Patches.of(tower, learned=tower.num_grid_per_side), max_pixels)

    def outputs(self, out: Any) -> Mapping[str, Tensor]:
        outputs = dict(super().outputs(out))
        if out.deepstack_features:
            outputs["deepstack"] = torch.stack(list(out.deepstack_features))
        return outputs

    def item_outputs(self, outputs: Mapping[str, Tensor], entries: slice) -> Mapping[str, Tensor]:
        # In `deepstack` the level dimension comes first.
        return {name: value[:, entries] if name == "deepstack" else value[entries] for name, value in outputs.items()}


def build_audio(context: StageContext) -> AudioEncoder:
    """The checkpoint's audio tower on the context's device."""
    config = read_config(context.checkpoint).hf.thinker_config.audio_config
    return AudioEncoder(load_tower(context, Qwen3OmniMoeAudioEncoder, config, "thinker.audio_tower."))


def build_vision(context: StageContext) -> VisionEncoder:
    """The checkpoint's vision tower on the context's device."""
    config = read_config(context.checkpoint).hf.thinker_config.vision_config
    tower = load_tower(context, Qwen3OmniMoeVisionEncoder, config, "thinker.visual.")
    return VisionEncoder(tower, read_max_pixels(context.checkpoint))
