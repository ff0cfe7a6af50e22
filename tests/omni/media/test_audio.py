import base64
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray

from omni.errors import InputError
from omni.media import MediaOptions, load_audio, save_wav
from tests.support.resources import no_file_over

RATE = 16000


def tone(seconds: float = 0.5, rate: int = RATE, hertz: float = 440.0) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def wav(samples: NDArray[np.generic], rate: int = RATE, subtype: str = "FLOAT", file_format: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=file_format, subtype=subtype)
    return buffer.getvalue()


def load(source: object, **settings: Any) -> NDArray[np.float32]:
    return load_audio(source, field="audio", **settings)  # type: ignore[arg-type]


def test_every_source_gives_the_same_samples(tmp_path: Path) -> None:
    data = wav(tone())
    file = tmp_path / "tone.wav"
    file.write_bytes(data)
    encoded = base64.b64encode(data).decode()
    tensor = torch.from_numpy(tone())
    sources: list[object] = [
        *(file, str(file), file.as_uri(), data, bytearray(data), f"data:audio/wav;base64,{encoded}"),
        *({"data": encoded, "format": "wav"}, tone(), tensor, (tone(), RATE), (tensor[None], RATE)),
        *(np.stack([tone(), tone()]), tone().astype(np.float64)),
    ]
    for source in sources:
        samples = load(source)
        assert samples.dtype == np.float32
        assert samples.ndim == 1
        np.testing.assert_array_equal(samples, tone())


def test_channels_are_averaged() -> None:
    left, right = tone(), tone(hertz=300.0)
    expected = (left.astype(np.float64) + right) / 2
    np.testing.assert_allclose(load(np.stack([left, right])), expected, atol=1e-7)
    np.testing.assert_allclose(load(wav(np.stack([left, right], 1))), expected, atol=1e-7)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_resampling_keeps_a_tone(rate: int) -> None:
    samples = load((tone(1.0, rate), rate))
    assert len(samples) == RATE
    # Away from the ends, where the interpolation lacks samples.
    np.testing.assert_allclose(samples[800:-800], tone(1.0)[800:-800], atol=1e-3)
    np.testing.assert_array_equal(load(wav(tone(1.0, rate), rate)), samples)


def test_another_target_rate() -> None:
    np.testing.assert_array_equal(load(tone(rate=24000), sample_rate=24000), tone(rate=24000))


@pytest.mark.parametrize(("dtype", "scale"), [(np.int16, 2**15), (np.int32, 2**31)])
def test_integers_are_scaled(dtype: type[np.signedinteger], scale: int) -> None:
    samples = np.array([-scale, 0, scale - 1, scale // 2] * 800, dtype)
    np.testing.assert_allclose(load(samples), samples.astype(np.float64) / scale, rtol=1e-6)


@pytest.mark.parametrize("file_format", ["FLAC", "OGG", "MP3"])
def test_compressed_formats_are_decoded(file_format: str) -> None:
    subtype = {"FLAC": "PCM_16", "OGG": "VORBIS", "MP3": "MPEG_LAYER_III"}[file_format]
    samples = load(wav(tone(1.0), subtype=subtype, file_format=file_format))
    assert abs(len(samples) - RATE) <= 2400
    spectrum = np.abs(np.fft.rfft(samples[: RATE // 2]))
    assert np.argmax(spectrum) * 2 == 440


def test_length_limits_are_arguments() -> None:
    with pytest.raises(InputError, match=r"too long.*raise frontend\.media\.max_audio_seconds"):
        load(tone(2.0), options=MediaOptions(max_audio_seconds=1.0))
    with pytest.raises(InputError, match=r"too short \(0\.05 s\)"):
        load(tone(0.05))
    assert len(load(tone(0.05), min_seconds=0.05)) == 800


NAN = tone()
NAN[7] = np.nan
INFINITE = tone()
INFINITE[7] = np.inf


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros(0, np.float32), r"empty \(0 samples\); give at least 0.1 s"),
        (np.zeros((2, 0), np.float32), "shape"),
        (torch.zeros(0), "empty"),
        (wav(np.zeros(0, np.float32)), "empty"),
        (b"", r"empty \(0 bytes\)"),
        (b"no sound at all", "not a sound file"),
        (wav(tone())[:20], "sound file"),
        (wav(tone())[:1000], "too short"),
        (NAN, "NaN or infinite"),
        (INFINITE, "NaN or infinite"),
        (wav(NAN), "NaN or infinite"),
        (tone() * 2**15, r"samples of 1\.64e\+04; scale floats to -1 to 1"),
        (np.zeros((16000, 2), np.float32), r"shape \[16000, 2\]; give \[samples\] or \[channels, samples\]"),
        (np.zeros((1, 2, 16000), np.float32), "shape"),
        (np.zeros((), np.float32), "shape"),
        (np.zeros(16000, np.complex64), "complex64"),
        (np.zeros(16000, np.uint8), "uint8"),
        (np.zeros(16000, bool), "bool"),
        (3, "is a int"),
        (None, "is a NoneType"),
        ([0.0] * 16000, "is a list"),
        ({"data": 3}, "keys"),
        ({"url": "x"}, "keys"),
        ({"data": "", "format": "wav", "rate": 3}, "keys"),
        ({"data": "????", "format": "wav"}, "not base64"),
        ((tone(),), "tuple of 1"),
        (("tone.wav", RATE), "tuple of 2"),
        ((tone(), 0), "sample rate of 0 Hz"),
        ((tone(), -1), "sample rate of -1 Hz"),
        ((tone(), 10**9), "sample rate of 1000000000 Hz"),
        ((tone(), "16000"), "is a str"),
        ((tone(), True), "is a bool"),
    ],
    # A wav file has the second in which it was made, and every process of a test run is to name cases alike.
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,
)
def test_an_invalid_sound_is_refused(source: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(source)
    assert caught.value.field.startswith("audio")


@pytest.mark.parametrize("file_format", ["MP3", "FLAC", "OGG", "WAV"])
def test_a_damaged_file_is_said_to_be_damaged(file_format: str) -> None:
    """For some of them, libsndfile reports that they do not exist, may be pipes, or that it failed itself."""
    subtype = {"MP3": "MPEG_LAYER_III", "FLAC": "PCM_16", "OGG": "VORBIS", "WAV": "PCM_16"}[file_format]
    good = wav(tone(), subtype=subtype, file_format=file_format)
    rng = np.random.default_rng(0)
    damaged = [good[:4] + bytes(4000), good[:50], good[:40] + b"\xff" * 4000, good[:200] + b"\xff" * 4000]
    for _ in range(60):
        changed = np.frombuffer(good, np.uint8).copy()
        changed[rng.integers(0, min(400, len(changed)), 5)] = rng.integers(0, 256, 5)
        damaged.append(changed.tobytes())
    problems, remedies = set(), set()
    for data in damaged:
        try:
            load(data)
        except InputError as error:
            problems.add(error.problem)
            remedies.add(error.remedy)
    assert all(remedy.startswith("give ") or "ffmpeg -i" in remedy for remedy in remedies)
    assert any("sound file" in problem for problem in problems)
    for problem in problems:
        assert not any(word in problem.lower() for word in ("internal", "exist", "pipe", "recognised", "psf_"))


@pytest.mark.parametrize("name", ["tone.raw", "tone.txt"])
def test_a_file_without_a_header(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(bytes(4000))
    with pytest.raises(InputError, match="not a sound file"):
        load(file)


def test_saving_rounds_to_sixteen_bits(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    save_wav(path, torch.from_numpy(tone(rate=24000)), 24000)
    info = soundfile.info(path)
    assert (info.samplerate, info.channels, info.subtype) == (24000, 1, "PCM_16")
    np.testing.assert_allclose(load(path, sample_rate=24000), tone(rate=24000), atol=1 / 2**15)


def test_saved_samples_are_clipped(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    save_wav(path, np.array([0.0, 2.0, -2.0, 1.0, -1.0] * 400, np.float32), RATE)
    np.testing.assert_allclose(load(path), [0.0, 1.0, -1.0, 1.0, -1.0] * 400, atol=1 / 2**15)


def test_a_wav_file_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\)"):
        save_wav(tmp_path / "nowhere" / "out.wav", tone(), RATE)
    with pytest.raises(InputError, match=r"^a\\x00b: cannot be written \(embedded null byte\)"):
        save_wav("a\0b", tone(), RATE)
    with pytest.raises(InputError, match="NaN or infinite"):
        save_wav(tmp_path / "out.wav", NAN, RATE)
    assert not (tmp_path / "out.wav").exists()


def test_a_file_that_fails_as_it_is_read() -> None:
    """The first page of this process's memory: an I/O error."""
    with pytest.raises(InputError, match=r"^f: is not a sound file that can be read \(.*Input/output error"):
        load_audio("/proc/self/mem", field="f")


def test_a_full_disk_leaves_the_wav_that_was_there(tmp_path: Path) -> None:
    save_wav(tmp_path / "out.wav", tone(), RATE)
    before = (tmp_path / "out.wav").read_bytes()
    with no_file_over(1000), pytest.raises(InputError, match=r"out\.wav: cannot be written \(File too large\)"):
        save_wav(tmp_path / "out.wav", -tone(), RATE)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"out.wav": before}


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open(reader, "rb") as pipe:
        save_wav(tmp_path / "pipe", tone()[:2000], RATE)
        samples, rate = soundfile.read(io.BytesIO(pipe.read()))
    assert (len(samples), rate) == (2000, RATE)
    assert (tmp_path / "pipe").is_fifo()
