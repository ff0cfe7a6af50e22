"""How much of a medium is decoded, and what that costs."""

import io
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, _imaging

from omni.errors import InputError
from omni.media import MediaOptions, audio, image, load_audio, load_image

FAST = 655_350
"""Hz, the most that a FLAC file may have."""


def sound(samples: NDArray[Any], rate: int, file_format: str = "FLAC", subtype: str = "PCM_16") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=file_format, subtype=subtype)
    return buffer.getvalue()


def load(source: object, **settings: Any) -> NDArray[np.float32]:
    return load_audio(source, field="here", options=MediaOptions(**settings))  # type: ignore[arg-type]


def refused(source: object, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(source, **settings)
    assert caught.value.field == "here"
    return str(caught.value)


@settings(max_examples=25)
@given(
    rates=st.tuples(
        st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000, FAST, 15999]), st.sampled_from([16000, 24000])
    ),
    frames=st.integers(1, 60_000),
    channels=st.integers(1, 3),
    block=st.integers(100, 70_000),
)
def test_blocks_in_a_row_are_the_whole(rates: tuple[int, int], frames: int, channels: int, block: int) -> None:
    """Bit for bit what soxr makes of all samples at once."""
    rate, wanted = rates
    samples = np.random.default_rng(frames).uniform(-1, 1, (frames, channels)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audio, "_BLOCK", block)
        made = load_audio(sound(samples, rate, "WAV", "FLOAT"), field="here", sample_rate=wanted, min_seconds=0.0)
    mono = samples.mean(axis=1)
    np.testing.assert_array_equal(made, mono if rate == wanted else soxr.resample(mono, rate, wanted))


def test_memory_is_that_of_the_result() -> None:
    """20 s of silence in 50 kB: 52 MB as it is decoded, 1.3 MB at the model's rate."""
    data = sound(np.zeros(20 * FAST, np.int16), FAST)
    tracemalloc.start()
    try:
        made = load(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made) == 20 * 16000
    assert most < 2 * made.nbytes + 16 * 4 * audio._BLOCK


def test_samples_are_counted_in_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all channels, and before any is decoded."""
    for frames, channels in ((100_000, 1), (25_000, 4)):
        data = sound(np.zeros((frames, channels), np.int16), 48000)
        assert len(load(data, max_audio_samples=100_000)) == round(frames / 3)
        with monkeypatch.context() as patch:
            patch.setattr(soundfile.SoundFile, "read", lambda *args, **settings: pytest.fail("it was decoded"))
            words = refused(data, max_audio_samples=99_999)
        assert "holds more than 99999 samples, all channels counted" in words
        assert "frontend.media.max_audio_samples" in words


def test_the_default_takes_twenty_minutes_in_stereo_and_refuses_a_bomb() -> None:
    assert 1200 * 48_000 * 2 <= MediaOptions().max_audio_samples < 240 * FAST


@pytest.mark.parametrize(
    "source",
    [
        np.zeros((2, 5000), np.float32),
        np.zeros(10_000, np.int16),
        torch.zeros(2, 5000),
        torch.zeros(1).expand(10_000),
        (np.zeros((4, 2500)), 16000),
        (torch.zeros(10_000, dtype=torch.int32), 48000),
    ],
    ids=["channels", "integers", "tensor", "expanded", "pair", "tensor pair"],
)
def test_arrays_obey_the_same_bounds(source: object) -> None:
    options = {"max_audio_samples": 10_000, "max_audio_seconds": 0.7}
    load_audio(source, field="here", min_seconds=0.0, options=MediaOptions(**options))  # type: ignore[arg-type]
    assert "holds more than 9999 samples" in refused(source, **(options | {"max_audio_samples": 9999}))
    assert "too long" in refused((np.zeros(16000), 16000), **options)


def test_a_virtual_array_is_not_written_out() -> None:
    """An hour of one number takes no memory, and 230 MB when it is written out; it is refused by its shape."""
    tracemalloc.start()
    try:
        assert "too long" in refused(np.broadcast_to(np.zeros((), np.float32), (3600 * 16000,)))
        assert "holds more than" in refused((np.broadcast_to(np.zeros((), np.int16), (32, 10_000_000)), 16000))
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_a_header_that_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoded samples are counted too, and no more of them are decoded than allowed."""
    data = sound(np.zeros(40_000), 16000, "WAV", "GSM610")
    monkeypatch.setattr(audio, "_BLOCK", 1000)
    monkeypatch.setattr(soundfile.SoundFile, "frames", property(lambda self: 5000))
    read, blocks = soundfile.SoundFile.read, []

    def counted(self: soundfile.SoundFile, *args: Any, **settings: Any) -> Any:
        blocks.append(args)
        return read(self, *args, **settings)

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    assert "holds more than 10000 samples" in refused(data, max_audio_samples=10_000)
    assert len(blocks) == 11


def test_a_short_flac_that_says_it_is_long_and_the_other_way() -> None:
    data = bytearray(sound(np.zeros(16000, np.int16), 16000))
    at = data.index(b"fLaC") + 8 + 13  # the low 36 bits of its 64 before the checksum: how many samples
    (before,) = struct.unpack(">Q", data[at - 3 : at + 5])
    for said in (1700, 2**36 - 1, 0):
        data[at - 3 : at + 5] = struct.pack(">Q", before - 16000 + said)
        if said == 1700:
            assert len(load(bytes(data))) <= 16000
        else:
            assert ("too long" if said else "header without its length") in refused(bytes(data))


def test_wav_of_telephones() -> None:
    """GSM 6.10 cannot seek, as soundfile's own reading of blocks requires."""
    samples = 0.5 * np.sin(np.arange(16000) / 20)
    data = sound(samples, 16000, "WAV", "GSM610")
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        expected = file.read(file.frames, dtype="float32")
    np.testing.assert_array_equal(load(data), expected)


def test_a_file_that_grows_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (2, 2)).save(file)
    size = file.stat().st_size
    with file.open("ab") as out:
        out.write(bytes(1000))
    stat = os.fstat

    def earlier(descriptor: int) -> os.stat_result:
        """As it was before it grew."""
        values = list(stat(descriptor))
        values[6] = size
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", earlier)
    with pytest.raises(InputError, match="is larger than"):
        load_image(file, field="here", options=MediaOptions(max_image_bytes=size + 500))
    load_image(file, field="here", options=MediaOptions(max_image_bytes=size + 1000))


@pytest.mark.parametrize("decode", [load_audio, load_image])
def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path, decode: Any) -> None:
    """A FIFO would be waited for, and a device may do something."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/tty", tmp_path):
        for options in (MediaOptions(), MediaOptions(local_folder="/")):
            with pytest.raises(InputError, match="here: there is no file"):
                decode(path, field="here", options=options)


def picture(file_format: str, side: int, mode: str = "RGB", **settings: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, file_format, **settings)
    return buffer.getvalue()


def too_large(data: bytes, side: int) -> str:
    with pytest.raises(InputError) as caught:
        load_image(data, field="here", options=MediaOptions(max_image_pixels=side * side))
    return str(caught.value)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_pixels_are_counted_in_the_header(file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture(file_format, 60)
    assert load_image(data, field="here", options=MediaOptions(max_image_pixels=3600)).size == (60, 60)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    assert "is too large (60 x 60)" in too_large(data, 59)


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_several_pictures_the_first_is_read(file_format: str) -> None:
    """Each costs its own; how many there are plays no part."""
    frames = [Image.new("RGB", (40, 40), (level, 0, 0)) for level in range(0, 200, 10)]
    buffer = io.BytesIO()
    frames[0].save(buffer, file_format, save_all=True, append_images=frames[1:])
    made = load_image(buffer.getvalue(), field="here", options=MediaOptions(max_image_pixels=1600))
    np.testing.assert_array_equal(np.asarray(made), np.asarray(frames[0]))


def test_a_frame_larger_than_its_canvas() -> None:
    data = bytearray(picture("GIF", 60, "P"))
    data[6:10] = struct.pack("<HH", 1, 1)
    assert "is too large (60 x 60)" in too_large(bytes(data), 59)


def tiled(tile: int, side: int) -> bytes:
    """A TIFF of one tile. The picture is a corner of it."""
    body = zlib.compress(bytes(tile * tile), 1)
    tags = [(256, side), (257, side), (258, 8), (259, 8), (262, 1), (277, 1)]
    tags += [(322, tile), (323, tile), (324, 8), (325, len(body))]
    listed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + struct.pack("<H", len(tags)) + listed + bytes(4)


def test_tiles_are_counted_whole() -> None:
    assert load_image(tiled(64, 16), field="here").size == (16, 16)
    assert "is too large (1024 x 1024)" in too_large(tiled(1024, 16), 1000)


def test_scans_of_a_progressive_picture() -> None:
    """Each passes over all pixels: a few hundred bytes more are as much work again."""
    data = picture("JPEG", 400, "L", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    assert load_image(data, field="here", options=MediaOptions(max_image_pixels=160_000)).size == (400, 400)
    bomb = data[:-2] + scan * 50 + data[-2:]
    assert "is too large (400 x 400 in" in too_large(bomb, 400)
    assert load_image(bomb, field="here").size == (400, 400)


def run_lengths(side: int, rows: bytes) -> bytes:
    """A BMP of 8 bits in runs."""
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0)
    at = 14 + len(header) + 1024
    return b"BM" + struct.pack("<IHHI", at + len(rows), 0, 0, at) + header + bytes(1024) + rows


@pytest.mark.parametrize(
    "make",
    [
        lambda side: b"P6 %d %d 254\n" % (side, side) + bytes(3 * side * side),
        lambda side: b"P5 %d %d 1023\n" % (side, side) + bytes(2 * side * side),
        lambda side: b"P2 %d %d 255\n" % (side, side) + b"0 " * side * side,
        lambda side: run_lengths(side, bytes([side, 0, 0, 0]) * side),
    ],
    ids=["PPM", "PGM", "plain PGM", "BMP"],
)
def test_files_that_are_slow_to_read(make: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow reads them pixel by pixel in Python, 1.3 s for a million."""
    monkeypatch.setattr(image, "_SLOW_PIXELS", 64 * 64)
    assert load_image(make(64), field="here").size == (64, 64)
    with pytest.raises(InputError, match=r"here: is too large \(65 x 65\) for its format"):
        load_image(make(65), field="here")
    empty = run_lengths(64, bytes([64, 0, 0, 0]) * 64 + bytes(2**16 + 16 * 64 * 64))
    with pytest.raises(InputError, match=r"here: is too large \(64 x 64\) for its format"):
        load_image(empty, field="here")
    load_image(picture("PPM", 65), field="here")
    load_image(picture("BMP", 65), field="here")


@pytest.mark.parametrize(("mode", "pictures"), [("RGB", 1), ("L", 2)])
def test_no_more_copies_than_needed(mode: str, pictures: int) -> None:
    """By Pillow's own count of the pictures that it makes: of a large one, each is a quarter of a gigabyte."""
    data = picture("PNG", 64, mode)
    before = _imaging.get_stats()["new_count"]
    assert load_image(data, field="here").mode == "RGB"
    assert _imaging.get_stats()["new_count"] - before == pictures
