"""The audio and vision towers, from transformers as they are."""

from typing import Any

from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder, Qwen2_5OmniVisionEncoder

from omni.stage import StageContext
from omni_encoder.towers.clip_encoder import Chunks, ClipEncoder
from omni_encoder.towers.loading import load_tower, read_max_pixels
from omni_encoder.towers.picture_encoder import Patches, PictureEncoder
from omni_qwen2_5_omni.config import read_config


class AudioEncoder(ClipEncoder):
    """Four mel frames give two tokens, which are pooled to one embedding. Tokens attend to those of their chunk."""

    def __init__(self, tower: Any) -> None:
        super().__init__(tower, Chunks(frames=2 * tower.n_window, convolutions=1, pool=2))


class VisionEncoder(PictureEncoder):
    """Most layers attend within windows; the tower orders the patches by window."""

    def __init__(self, tower: Any, max_pixels: int | None = None) -> None:
        window = tower.window_size // (tower.spatial_merge_size * tower.patch_size)
        super().__init__(tower, Patches.of(tower, window=window), max_pixels)


def embedded_frames(frames: int) -> int:
    """Number of audio tokens of a clip: one convolution of stride 2, then pooling of pairs, without an odd last one."""
    return -(-frames // 2) // 2


def build_audio(context: StageContext) -> AudioEncoder:
    """The checkpoint's audio tower on the context's device."""
    config = read_config(context.checkpoint).hf.thinker_config.audio_config
    return AudioEncoder(load_tower(context, Qwen2_5OmniAudioEncoder, config, "thinker.audio_tower."))


def build_vision(context: StageContext) -> VisionEncoder:
    """The checkpoint's vision tower on the context's device."""
    config = read_config(context.checkpoint).hf.thinker_config.vision_config
    tower = load_tower(context, Qwen2_5OmniVisionEncoder, config, "thinker.visual.")
    return VisionEncoder(tower, read_max_pixels(context.checkpoint))
