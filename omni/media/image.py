"""Pictures in: any source to an RGB picture."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from omni.errors import InputError
from omni.media.samples import to_numpy
from omni.media.source import Location, open_location

ImageSource = Location | bytes | Image.Image | NDArray[np.generic] | torch.Tensor
"""A path, URL or data URI; a file's bytes; a picture; pixels as uint8 or as floats from 0 to 1, `[height, width]` or
with 1, 3 or 4 channels first or last."""

# Only these: Pillow's other readers are little tested, and one starts Ghostscript.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_CHANNELS = (1, 3, 4)
# What Pillow's readers raise on damaged files.
_DAMAGED = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, struct.error, zlib.error)


def load_image(
    source: ImageSource, *, field: str, max_pixels: int = 64 * 2**20, max_bytes: int = 64 * 2**20
) -> Image.Image:
    """An RGB picture, upright as its EXIF orientation says, an alpha channel dropped.

    Raises InputError, naming `field`, if it cannot be read, has no pixels or more than `max_pixels` (told from a file's
    header, before it is decoded), or is an array that is no picture.
    """
    if isinstance(source, Image.Image):
        return _to_rgb(source, field, max_pixels)
    if isinstance(source, np.ndarray | torch.Tensor):
        pixels = _to_hwc(source, field)
        _check_size(pixels.shape[1], pixels.shape[0], field, max_pixels)
        return Image.fromarray(_to_uint8(pixels, field), "RGB")
    return _decode(_open(source, field, max_bytes), field, max_pixels)


def _open(source: object, field: str, max_bytes: int) -> Path | bytes:
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    if isinstance(source, str | os.PathLike):
        return open_location(source, field=field, max_bytes=max_bytes)
    problem = f"is a {type(source).__name__}"
    raise InputError(field, problem, "give a path, a URL, a data URI, bytes, a PIL image, an array or a tensor")


def _decode(data: Path | bytes, field: str, max_pixels: int) -> Image.Image:
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=_FORMATS) as image:
            return _to_rgb(image, field, max_pixels)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(field, "is too large", f"give a picture of at most {max_pixels} pixels") from error
    except _DAMAGED as error:
        remedy = f"give a {', '.join(_FORMATS)} file"
        raise InputError(field, f"is not a picture that can be read ({error})", remedy) from error


def _to_rgb(image: Image.Image, field: str, max_pixels: int) -> Image.Image:
    _check_size(image.width, image.height, field, max_pixels)
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        # 16-bit gray: Pillow's own conversion clips at 255 instead of scaling.
        upright = Image.fromarray((np.asarray(upright) // 256).clip(0, 255).astype(np.uint8))
    if "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return upright.convert("RGB")


def _to_hwc(source: NDArray[np.generic] | torch.Tensor, field: str) -> NDArray[np.generic]:
    """Pixels `[height, width, channels]`. Where both readings fit, arrays have channels last and tensors first."""
    shape = tuple(source.shape)
    array = to_numpy(source)
    if len(shape) == 2:
        return array[:, :, None]
    if len(shape) == 3:
        last, first = shape[2] in _CHANNELS, shape[0] in _CHANNELS
        if last and not (first and isinstance(source, torch.Tensor)):
            return array
        if first:
            return array.transpose(1, 2, 0)
    remedy = "give [height, width] or 1, 3 or 4 channels first or last"
    raise InputError(field, f"has shape {list(shape)}", remedy)


def _to_uint8(pixels: NDArray[np.generic], field: str) -> NDArray[np.uint8]:
    remedy = "give uint8, or floats from 0 to 1"
    if pixels.dtype.kind == "f":
        values = pixels.astype(np.float32)
        # Negated, so that NaN fails too.
        if not (values.min() >= 0.0 and values.max() <= 1.0):
            raise InputError(field, f"holds values from {values.min():g} to {values.max():g}", remedy)
        pixels = np.rint(values * 255.0).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise InputError(field, f"holds {pixels.dtype} values", remedy)
    return np.ascontiguousarray(np.broadcast_to(pixels[:, :, :3], (*pixels.shape[:2], 3)), dtype=np.uint8)


def _check_size(width: int, height: int, field: str, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise InputError(field, f"has no pixels ({width} x {height})", "give a picture of at least 1 x 1")
    if width * height > max_pixels:
        problem = f"is too large ({width} x {height})"
        raise InputError(field, problem, f"give a picture of at most {max_pixels} pixels")
