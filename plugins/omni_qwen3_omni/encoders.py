"""The audio and vision towers: configs and names of weights."""

from functools import partial

from omni.stage import StageContext
from omni_encoder.towers.configs import tower_config
from omni_encoder.towers.conv2d_clips import Conv2dClipConfig, Conv2dClipEncoder
from omni_encoder.towers.deepstack_pictures import DeepstackPictureConfig, DeepstackPictureEncoder
from omni_encoder.towers.loading import load_tower, read_max_pixels
from omni_qwen3_omni.config import read_config


def build_audio(context: StageContext) -> Conv2dClipEncoder:
    """The checkpoint's audio tower on the context's device."""
    whole = read_config(context.checkpoint).hf.to_dict()
    config = tower_config(Conv2dClipConfig, whole, "thinker_config.audio_config")
    return load_tower(context, partial(Conv2dClipEncoder, config), "thinker.audio_tower.")


def build_vision(context: StageContext) -> DeepstackPictureEncoder:
    """The checkpoint's vision tower on the context's device."""
    whole, most = read_config(context.checkpoint).hf.to_dict(), read_max_pixels(context.checkpoint)
    config = tower_config(DeepstackPictureConfig, whole, "thinker_config.vision_config")
    return load_tower(context, partial(DeepstackPictureEncoder, config, most), "thinker.visual.")
