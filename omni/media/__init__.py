"""Sound and pictures: from users' sources to arrays, and to files."""

from omni.media.audio import AudioSource, check_audio, load_audio, save_wav
from omni.media.download import MediaDownloader
from omni.media.image import ImageSource, check_image, load_image
from omni.media.options import MediaOptions
from omni.media.samples import content_hash
from omni.media.source import Downloaded

__all__ = [
    "AudioSource",
    "Downloaded",
    "ImageSource",
    "MediaDownloader",
    "MediaOptions",
    "check_audio",
    "check_image",
    "content_hash",
    "load_audio",
    "load_image",
    "save_wav",
]
