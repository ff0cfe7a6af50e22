import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from omni.errors import InputError
from omni.media import MediaOptions, content_hash, load_image

HEIGHT, WIDTH = 5, 7
PIXELS: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def encode(image: Image.Image, file_format: str = "PNG", **settings: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **settings)
    return buffer.getvalue()


def load(source: object, **settings: int) -> Image.Image:
    return load_image(source, field="image", options=MediaOptions(**settings))  # type: ignore[arg-type]


def test_every_source_gives_the_same_picture(tmp_path: Path) -> None:
    picture = Image.fromarray(PIXELS)
    data = encode(picture)
    file = tmp_path / "picture.png"
    file.write_bytes(data)
    tensor, uri = torch.from_numpy(PIXELS), "data:image/png;base64," + base64.b64encode(data).decode()
    sources: list[object] = [
        *(file, str(file), file.as_uri(), data, bytearray(data), uri, picture, PIXELS, PIXELS.transpose(2, 0, 1)),
        *(tensor, tensor.permute(2, 0, 1), PIXELS.astype(np.float32) / 255, tensor.permute(2, 0, 1).double() / 255),
        np.concatenate([PIXELS, np.zeros((HEIGHT, WIDTH, 1), np.uint8)], 2),
        *(encode(picture, "BMP"), encode(picture, "WEBP", lossless=True), encode(picture, "TIFF")),
    ]
    for source in sources:
        image = load(source)
        assert image.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(image), PIXELS)


def test_gray_becomes_equal_channels() -> None:
    gray = PIXELS[:, :, 0]
    for source in (gray, gray[:, :, None], gray[None], torch.from_numpy(gray), encode(Image.fromarray(gray))):
        np.testing.assert_array_equal(np.asarray(load(source)), np.stack([gray] * 3, 2))


def test_sixteen_bit_gray_is_scaled() -> None:
    gray = PIXELS[:, :, 0]
    data = encode(Image.fromarray(gray.astype(np.uint16) * 257))
    np.testing.assert_array_equal(np.asarray(load(data))[:, :, 0], gray)


def test_ambiguous_shapes_follow_their_library() -> None:
    """Three rows, or three channels? Arrays keep channels last, tensors first."""
    assert load(np.zeros((3, 8, 4), np.uint8)).size == (8, 3)
    assert load(torch.zeros(3, 8, 4)).size == (4, 8)


def test_transparency_and_orientation() -> None:
    clear = Image.fromarray(np.concatenate([PIXELS, np.zeros((HEIGHT, WIDTH, 1), np.uint8)], 2))
    np.testing.assert_array_equal(np.asarray(load(encode(clear))), PIXELS)
    palette = Image.fromarray(PIXELS).convert("P")
    assert load(encode(palette, transparency=bytes(256))).mode == "RGB"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter clockwise
    turned = load(encode(Image.fromarray(PIXELS), exif=exif))
    np.testing.assert_array_equal(np.asarray(turned), np.rot90(PIXELS, -1))


def test_the_given_picture_stays_as_it_is() -> None:
    picture = Image.fromarray(PIXELS)
    load(picture).putpixel((0, 0), (1, 2, 3))
    np.testing.assert_array_equal(np.asarray(picture), PIXELS)


def png_header(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize("side", [9000, 12000, 60000])
def test_absurd_sizes_are_refused_by_the_header(side: int) -> None:
    """The file has no pixels, so decoding it would fail otherwise. Pillow itself complains above 9,459 a side."""
    data = png_header(side, side) + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    with pytest.raises(InputError, match=r"too large.*at most 67108864 pixels"):
        load(data)


def test_the_pixel_limit_is_an_option() -> None:
    assert load(PIXELS, max_image_pixels=35).size == (WIDTH, HEIGHT)
    for source in (PIXELS, Image.fromarray(PIXELS), encode(Image.fromarray(PIXELS))):
        with pytest.raises(InputError, match=r"too large \(7 x 5\)"):
            load(source, max_image_pixels=34)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "not a picture"),
        (b"no picture at all", "not a picture"),
        (encode(Image.fromarray(PIXELS))[:60], "not a picture"),
        (encode(Image.fromarray(PIXELS.repeat(20, 0)), "JPEG")[:500], "not a picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        (np.zeros((4, 0), np.float32), "no pixels"),
        (Image.new("RGB", (0, 3)), "no pixels"),
        (np.zeros((5, 6, 2), np.uint8), r"shape \[5, 6, 2\]"),
        (np.zeros((1, 3, 4, 4), np.uint8), "shape"),
        (np.zeros(4, np.uint8), "shape"),
        (np.full((4, 4, 3), 1.5), "values from 1.5 to 1.5"),
        (np.full((4, 4, 3), -0.5), "values from -0.5"),
        (np.full((4, 4, 3), np.nan), "values from nan"),
        (np.zeros((4, 4, 3), np.int64), "int64"),
        (torch.zeros(3, 4, 4, dtype=torch.bool), "bool"),
        (7, "is a int"),
        (None, "is a NoneType"),
        ("nowhere.png", "no file"),
        (b"no picture", r"can be read \(its format is unknown\)"),
    ],
)
def test_an_invalid_picture_is_refused(source: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(source)
    assert caught.value.field == "image"


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns of damaged metadata that it can do without.
@pytest.mark.parametrize("cut", range(8, 300, 7))
def test_damaged_files_never_crash(cut: int) -> None:
    """Every damaged file either loads or is refused by its own error."""
    for file_format in ("PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"):
        data = bytearray(encode(Image.fromarray(PIXELS), file_format))
        data[cut % len(data)] ^= 0xFF
        try:
            assert load(bytes(data)).mode == "RGB"
        except InputError as error:
            assert error.field == "image"  # noqa: PT017


def test_hashes_differ_where_contents_do() -> None:
    samples = np.arange(6, dtype=np.float32)
    same = content_hash(samples.copy())
    assert content_hash(samples) == same
    assert content_hash(np.arange(12, dtype=np.float32)[::2] / 2) == same
    others: list[NDArray[Any]] = [
        samples.reshape(2, 3),
        samples.astype(np.float64),
        samples.view(np.int32),
        samples[::-1],
        samples[:5],
    ]
    assert len({same, *(content_hash(other) for other in others)}) == 6
    assert content_hash(Image.fromarray(PIXELS)) == content_hash(PIXELS)
    assert content_hash(Image.fromarray(PIXELS)) != content_hash(Image.fromarray(PIXELS).rotate(180))


def test_a_file_that_fails_as_it_is_read() -> None:
    """The first page of this process's memory: an I/O error."""
    with pytest.raises(InputError, match=r"^f: cannot be read \(Input/output error\)"):
        load_image("/proc/self/mem", field="f")
