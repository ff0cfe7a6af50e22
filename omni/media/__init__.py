"""Sound and pictures: from whatever a user gives to arrays, and back to files."""

from omni.media.audio import AudioSource, load_audio, save_wav
from omni.media.image import ImageSource, load_image
from omni.media.key import content_hash

__all__ = ["AudioSource", "ImageSource", "content_hash", "load_audio", "load_image", "save_wav"]
