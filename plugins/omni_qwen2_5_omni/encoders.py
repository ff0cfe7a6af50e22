"""The audio and vision towers: configs and names of weights."""

from functools import partial

from omni.stage import StageContext
from omni_encoder.towers.configs import ClipTowerConfig, tower_config
from omni_encoder.towers.conv1d_clips import Conv1dClipEncoder
from omni_encoder.towers.loading import load_tower, read_max_pixels
from omni_encoder.towers.windowed_pictures import WindowedPictureConfig, WindowedPictureEncoder
from omni_qwen2_5_omni.config import read_config


def embedded_frames(frames: int) -> int:
    """Number of audio tokens of a clip: one convolution of stride 2, then pooling of pairs, without an odd last one."""
    return -(-frames // 2) // 2


def build_audio(context: StageContext) -> Conv1dClipEncoder:
    """The checkpoint's audio tower on the context's device."""
    whole = read_config(context.checkpoint).hf.to_dict()
    config = tower_config(ClipTowerConfig, whole, "thinker_config.audio_config")
    return load_tower(context, partial(Conv1dClipEncoder, config), "thinker.audio_tower.")


def build_vision(context: StageContext) -> WindowedPictureEncoder:
    """The checkpoint's vision tower on the context's device."""
    whole, most = read_config(context.checkpoint).hf.to_dict(), read_max_pixels(context.checkpoint)
    config = tower_config(WindowedPictureConfig, whole, "thinker_config.vision_config")
    return load_tower(context, partial(WindowedPictureEncoder, config, most), "thinker.visual.")
