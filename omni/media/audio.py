"""Sound in: any source to mono float32 at a model's rate. Sound out: a wav file."""

import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import soundfile
import soxr
import torch
from numpy.typing import NDArray

from omni.errors import InputError
from omni.files import is_special, replacing
from omni.media.samples import Samples, check_length, check_rate, to_mono
from omni.media.source import Location, decode_base64, open_location

AudioSource = Location | bytes | Mapping[str, str] | Samples | tuple[Samples, int]
"""A path, URL or data URI; a file's bytes; `{"data": base64, "format": "wav"}`; samples `[n]` or `[channels, n]`, alone
(at the rate the model wants) or as `(samples, rate)`."""


def load_audio(
    source: AudioSource,
    *,
    field: str,
    sample_rate: int = 16000,
    min_seconds: float = 0.1,
    max_seconds: float = 1200.0,
    max_bytes: int = 512 * 2**20,
) -> NDArray[np.float32]:
    """Mono float32 samples `[n]` at `sample_rate` Hz, channels averaged. Integers are scaled to -1..1, floats are kept.

    Raises InputError, naming `field`, if the sound cannot be read, is empty, shorter than `min_seconds` or longer than
    `max_seconds` (told from a file's header, before it is decoded), is not finite, or has a shape that is no sound.
    """
    if isinstance(source, tuple):
        mono, rate = _from_pair(source, field)
    elif isinstance(source, np.ndarray | torch.Tensor):
        mono, rate = to_mono(source, field), sample_rate
    else:
        mono, rate = _decode(_open(source, field, max_bytes), field, min_seconds, max_seconds)
    # Of a file too: a damaged one may hold less than its header says.
    check_length(len(mono), rate, field, min_seconds, max_seconds)
    if not np.isfinite(mono).all():
        raise InputError(field, "holds samples that are NaN or infinite", "give finite samples between -1 and 1")
    if rate == sample_rate:
        return mono
    resampled: NDArray[np.float32] = soxr.resample(mono, rate, sample_rate)
    return resampled


def save_wav(path: str | os.PathLike[str], samples: NDArray[np.float32] | torch.Tensor, sample_rate: int) -> None:
    """Writes mono samples `[n]`, float32 within -1..1 (clipped to that), as 16-bit PCM.

    Raises InputError if the samples are not finite or the file cannot be written; a file that was there is as it was then.
    """
    array = to_mono(samples, "samples")
    if not np.isfinite(array).all():
        raise InputError("samples", "are NaN or infinite in places", "give finite samples between -1 and 1")
    wav = io.BytesIO()
    soundfile.write(wav, np.clip(array, -1.0, 1.0), sample_rate, format="WAV", subtype="PCM_16")
    try:
        # A device or a pipe is written to; nothing takes its place.
        with open(path, "wb") if is_special(path) else replacing(path) as file:
            file.write(wav.getbuffer())
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise InputError(str(path), problem, "give a file name in a folder that exists") from error


def _open(source: object, field: str, max_bytes: int) -> Path | bytes:
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    if isinstance(source, Mapping):
        data = source.get("data")
        if set(source) - {"data", "format"} or not isinstance(data, str):
            problem = f"has the keys {sorted(map(str, source))}"
            raise InputError(field, problem, 'give {"data": <base64 of the file>, "format": "wav"}')
        return decode_base64(data, field=f"{field}.data", max_bytes=max_bytes)
    if isinstance(source, str | os.PathLike):
        return open_location(source, field=field, max_bytes=max_bytes)
    problem = f"is a {type(source).__name__}"
    raise InputError(field, problem, "give a path, a URL, a data URI, bytes, an array, a tensor or (array, rate)")


def _decode(data: Path | bytes, field: str, min_seconds: float, max_seconds: float) -> tuple[NDArray[np.float32], int]:
    if data == b"":
        raise InputError(field, "is empty (0 bytes)", f"give at least {min_seconds:g} s of sound")
    try:
        with soundfile.SoundFile(io.BytesIO(data) if isinstance(data, bytes) else data) as file:
            rate = int(file.samplerate)
            check_rate(rate, field)
            check_length(file.frames, rate, field, min_seconds, max_seconds)
            blocks = [block.mean(axis=1) for block in file.blocks(1 << 16, dtype="float32", always_2d=True)]
    # A TypeError: a headerless format, which soundfile tells by the file's name, lacks its rate.
    except (soundfile.SoundFileError, TypeError, OSError) as error:
        problem = f"is not a sound file that can be read ({error})"
        raise InputError(field, problem, "give a wav, flac, ogg or mp3 file") from error
    return np.concatenate(blocks or [np.zeros(0, np.float32)]), rate


def _from_pair(source: tuple[Samples, int], field: str) -> tuple[NDArray[np.float32], int]:
    if len(source) != 2 or not isinstance(source[0], np.ndarray | torch.Tensor):
        raise InputError(field, f"is a tuple of {len(source)}", "give (samples, sample rate in Hz)")
    samples, rate = source
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise InputError(f"{field}[1]", f"is a {type(rate).__name__}", "give the sample rate in Hz as an integer")
    check_rate(int(rate), f"{field}[1]")
    return to_mono(samples, f"{field}[0]"), int(rate)
