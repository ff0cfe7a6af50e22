"""Loads pictures from any source as RGB."""

import io
import os
import struct
import zlib
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError

from omni.errors import InputError, quoted, shortened
from omni.media.local import too_large
from omni.media.options import MediaOptions
from omni.media.samples import check_values, to_numpy
from omni.media.source import Downloaded, Location, check_location, open_location

ImageSource = Location | bytes | Image.Image | NDArray[np.generic] | torch.Tensor
"""A path, URL or data URI; a file's bytes; a picture; pixels as uint8 or as floats from 0 to 1, `[height, width]` or
with 1, 3 or 4 channels first or last."""

# Only these: Pillow's other readers are less tested, and one starts Ghostscript.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_CHANNELS = (1, 3, 4)
_DEFAULTS = MediaOptions()

_IN_PYTHON = ("ppm", "ppm_plain", "bmp_rle")
"""Formats that Pillow decodes by loops in Python, at a second for a million pixels: PPM as text or of other than 8 bits, and
run-length encoded BMP."""
_SLOW_PIXELS = 4 * 2**20
_SLOW_BYTES = 2**16

_MAX_SCANS = 20
"""Maximum scans of a progressive JPEG of the largest size. Cameras and programs write about 10."""
# Errors of Pillow's readers for damaged files.
_DAMAGED = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, struct.error, zlib.error)


def check_image(source: object, field: str, options: MediaOptions = _DEFAULTS) -> None:
    """Raises InputError, as `load_image` would, for a wrong type or a forbidden source. Opens no file and no connection."""
    if isinstance(source, str | os.PathLike):
        check_location(source, field, options)
    elif not isinstance(source, Image.Image | np.ndarray | torch.Tensor | bytes | bytearray):
        problem = f"is a {shortened(type(source).__name__)}"
        raise InputError(field, problem, "give a path, a URL, a data URI, bytes, a PIL image, an array or a tensor")


def load_image(
    source: ImageSource, *, field: str, options: MediaOptions = _DEFAULTS, downloaded: Downloaded | None = None
) -> Image.Image:
    """An RGB picture, rotated by its EXIF orientation, without alpha channel; the first one of a file. downloaded: content by URL;
    None downloads a URL here. Raises InputError, naming `field`, if it cannot be read, has no pixels or more than the options allow
    (by a file's header, before it is decoded), or is an array of a wrong shape or type."""
    check_image(source, field, options)
    if isinstance(source, Image.Image):
        _check_size(source.width, source.height, field, options)
        picture = _guarded(lambda: _to_rgb(source), field, options)
        # The user may change the original.
        return picture.copy() if picture is source else picture
    if isinstance(source, np.ndarray | torch.Tensor):
        check_values(source, field)
        pixels = _to_hwc(source, field, options)
        return Image.fromarray(_to_uint8(pixels, field), "RGB")
    data = _read(source, field, options, downloaded)

    def decode() -> Image.Image:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(image.width, image.height, field, options)
            _check_work(image, data, field, options)
            return _to_rgb(image)

    return _guarded(decode, field, options)


def _read(source: Location | bytes, field: str, options: MediaOptions, downloaded: Downloaded | None) -> bytes:
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    most = options.max_image_bytes
    with open_location(source, field=field, options=options, max_bytes=most, downloaded=downloaded) as file:
        try:
            # Reads one byte more than allowed: the file may have grown.
            data = file.read(most + 1)
        except OSError as error:
            raise InputError(field, f"cannot be read ({error.strerror})", "give a readable file") from error
    if len(data) > most:
        raise too_large(field, most)
    return data


def _guarded(decode: Callable[[], Image.Image], field: str, options: MediaOptions) -> Image.Image:
    try:
        return decode()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        remedy = f"give a picture of at most {options.max_image_pixels} pixels"
        raise InputError(field, "is too large", remedy) from error
    except _DAMAGED as error:
        remedy = f"give a {', '.join(_FORMATS)} file"
        # Pillow's own text names the object that it read from.
        reason = "its format is unknown" if isinstance(error, UnidentifiedImageError) else shortened(str(error))
        raise InputError(field, f"is not a picture that can be read ({reason})", remedy) from error


def _to_rgb(image: Image.Image) -> Image.Image:
    """Makes as few copies as possible: each of a large picture takes a quarter of a gigabyte."""
    image.load()
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    upright = ImageOps.exif_transpose(image) if turned else image
    if upright.mode.startswith("I"):
        # 16-bit gray: Pillow's own conversion clips at 255 instead of scaling.
        upright = Image.fromarray((np.asarray(upright) // 256).clip(0, 255).astype(np.uint8))
    if "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return upright if upright.mode == "RGB" else upright.convert("RGB")


def _check_work(image: ImageFile.ImageFile, data: bytes, field: str, options: MediaOptions) -> None:
    """Raises InputError for files that take more memory or time than their size suggests."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        # Tiles are decoded whole, even if little of them is in the picture.
        width, height = (image.tag_v2.get(tag, 1) for tag in (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH))
        _check_size(width, height, field, options)
    pixels = image.width * image.height
    slow = any(tile.codec_name in _IN_PYTHON for tile in image.tile)
    if slow and (pixels > _SLOW_PIXELS or len(data) > _SLOW_BYTES + 16 * pixels):
        problem = f"is too large ({image.width} x {image.height}) for its format, which is slow to read"
        raise InputError(field, problem, "save it as PNG")
    if image.format in ("JPEG", "MPO"):
        # Each scan of a progressive picture decodes all of it. The marker occurs only at the start of a scan.
        scans = data.count(b"\xff\xda")
        if scans * pixels > _MAX_SCANS * options.max_image_pixels:
            problem = f"is too large ({image.width} x {image.height} in {scans} scans)"
            raise InputError(field, problem, "save it with fewer scans")


def _to_hwc(source: NDArray[np.generic] | torch.Tensor, field: str, options: MediaOptions) -> NDArray[np.generic]:
    """Pixels `[height, width, channels]`. In ambiguous cases arrays have channels last and tensors first."""
    shape = tuple(source.shape)
    order = _order(shape, first=isinstance(source, torch.Tensor))
    if order is None:
        remedy = "give [height, width] or 1, 3 or 4 channels first or last"
        raise InputError(field, f"has shape {quoted(list(shape))}", remedy)
    _check_size(shape[order[1]], shape[order[0]], field, options)
    array = to_numpy(source, field)
    return array[:, :, None] if len(shape) == 2 else array.transpose(order)


def _order(shape: tuple[int, ...], first: bool) -> tuple[int, ...] | None:
    """The axes of height, width and channels. first: whether channels come first if both are possible."""
    if len(shape) == 2:
        return 0, 1
    if len(shape) != 3:
        return None
    if shape[2] in _CHANNELS and not (first and shape[0] in _CHANNELS):
        return 0, 1, 2
    return (1, 2, 0) if shape[0] in _CHANNELS else None


def _to_uint8(pixels: NDArray[np.generic], field: str) -> NDArray[np.uint8]:
    remedy = "give uint8, or floats from 0 to 1"
    if pixels.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = pixels.astype(np.float32)
        # Negated, so that NaN is refused too.
        if not (values.min() >= 0.0 and values.max() <= 1.0):
            raise InputError(field, f"holds values from {values.min():g} to {values.max():g}", remedy)
        pixels = np.rint(values * 255.0).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise InputError(field, f"holds {pixels.dtype} values", remedy)
    return np.ascontiguousarray(np.broadcast_to(pixels[:, :, :3], (*pixels.shape[:2], 3)), dtype=np.uint8)


def _check_size(width: int, height: int, field: str, options: MediaOptions) -> None:
    if width < 1 or height < 1:
        raise InputError(field, f"has no pixels ({width} x {height})", "give a picture of at least 1 x 1")
    if width * height > options.max_image_pixels:
        remedy = f"give a picture of at most {options.max_image_pixels} pixels"
        problem = f"is too large ({width} x {height})"
        raise InputError(field, problem, remedy, "raise frontend.media.max_image_pixels")
