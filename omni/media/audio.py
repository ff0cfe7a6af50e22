"""Loads sound from any source as mono float32 at a model's rate, and saves wav files."""

import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np
import soundfile
import soxr
import torch
from numpy.typing import NDArray

from omni.errors import InputError, quoted, shortened
from omni.media.options import MediaOptions
from omni.media.samples import Samples, check_rate, check_shape, to_mono
from omni.media.source import Downloaded, Location, check_location, decode_base64, open_location
from omni.utils.files import is_special, reason, replacing

AudioSource = Location | bytes | Mapping[str, str] | Samples | tuple[Samples, int]
"""A path, URL or data URI; a file's bytes; `{"data": base64, "format": "wav"}`; samples `[n]` or `[channels, n]`, alone
(at the model's rate) or as `(samples, rate)`."""

_BLOCK = 1 << 18
"""Samples of all channels decoded at a time."""

_DEFAULTS = MediaOptions()


def check_audio(source: object, field: str, options: MediaOptions = _DEFAULTS) -> None:
    """Raises InputError, as `load_audio` would, for a wrong type or a forbidden source. Opens no file and no connection."""
    if isinstance(source, tuple):
        _pair(source, field)
    elif isinstance(source, Mapping):
        _base64(source, field)
    elif isinstance(source, str | os.PathLike):
        check_location(source, field, options)
    elif not isinstance(source, np.ndarray | torch.Tensor | bytes | bytearray):
        problem = f"is a {shortened(type(source).__name__)}"
        raise InputError(field, problem, "give a path, a URL, a data URI, bytes, an array, a tensor or (array, rate)")


def load_audio(
    source: AudioSource,
    *,
    field: str,
    sample_rate: int = 16000,
    min_seconds: float = 0.1,
    options: MediaOptions = _DEFAULTS,
    downloaded: Downloaded | None = None,
) -> NDArray[np.float32]:
    """Mono float32 samples `[n]` at `sample_rate` Hz, channels averaged. Integers are scaled to -1..1, floats are kept.

    options: allowed sources and sizes. downloaded: content by URL; None downloads a URL here. A file is decoded and resampled
    block by block, in memory proportional to the result.
    Raises InputError, naming `field`, if the sound cannot be read, is empty, shorter than `min_seconds` or beyond the bounds of
    `options` (by a file's header, before it is decoded, and again while it is), is not finite, or has a wrong shape.
    """
    check_audio(source, field, options)
    bounds = _Bounds(field, min_seconds, options)
    if isinstance(source, tuple):
        (samples, rate), at = _pair(source, field), f"{field}[0]"
    elif isinstance(source, np.ndarray | torch.Tensor):
        samples, rate, at = source, sample_rate, field
    else:
        with _open(source, field, options, downloaded) as file:
            return _decode(file, sample_rate, bounds)
    frames, channels = check_shape(samples, at)
    bounds.check(frames, channels, rate)
    return _resampled([to_mono(samples, at)], rate, sample_rate, bounds)


def save_wav(path: str | os.PathLike[str], samples: NDArray[np.float32] | torch.Tensor, sample_rate: int) -> None:
    """Writes mono samples `[n]`, float32 within -1..1 (clipped to that), as 16-bit PCM. Raises InputError if they are not finite or
    the file cannot be written; an existing file is then unchanged."""
    array = to_mono(samples, "samples")
    if not np.isfinite(array).all():
        raise InputError("samples", "hold NaN or infinite values", "give finite samples between -1 and 1")
    wav = io.BytesIO()
    soundfile.write(wav, np.clip(array, -1.0, 1.0), sample_rate, format="WAV", subtype="PCM_16")
    try:
        # A device or a pipe is written directly and never replaced.
        with open(path, "wb") if is_special(path) else replacing(path) as file:
            file.write(wav.getbuffer())
    except (OSError, ValueError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "free some space, or give another file" if full else "give a file name in a folder that exists"
        raise InputError(shortened(str(path)), f"cannot be written ({reason(error)})", remedy) from error


_UNKNOWN = 2**63 - 1
"""Frames that libsndfile reports for a file without a length in its header."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The allowed size of a sound, checked for the header first and then for the samples."""

    field: str
    min_seconds: float
    options: MediaOptions

    def check(self, frames: int, channels: int, rate: int) -> None:
        seconds, least, most = frames / rate, self.min_seconds, self.options.max_audio_seconds
        more = f"give at least {least:g} s of sound"
        if frames == 0:
            raise InputError(self.field, "is empty (0 samples)", more)
        if seconds < least:
            raise InputError(self.field, f"is too short ({seconds:.3g} s)", more)
        if seconds > most:
            remedy, setting = f"give at most {most:g} s of sound", "raise frontend.media.max_audio_seconds"
            raise InputError(self.field, f"is too long ({seconds:.1f} s)", remedy, setting)
        self.check_samples(frames * channels)

    def check_samples(self, samples: int) -> None:
        """samples: of all channels."""
        most = self.options.max_audio_samples
        if samples > most:
            problem = f"holds more than {most} samples, all channels counted"
            remedy = "give less sound, or at a lower rate"
            raise InputError(self.field, problem, remedy, "raise frontend.media.max_audio_samples")


def _open(
    source: Location | bytes | Mapping[str, str], field: str, options: MediaOptions, downloaded: Downloaded | None
) -> BinaryIO:
    if isinstance(source, bytes | bytearray):
        return io.BytesIO(source)
    most = options.max_audio_bytes
    if isinstance(source, Mapping):
        return io.BytesIO(decode_base64(_base64(source, field), field=f"{field}.data", max_bytes=most))
    return open_location(source, field=field, options=options, max_bytes=most, downloaded=downloaded)


def _decode(file: BinaryIO, sample_rate: int, bounds: _Bounds) -> NDArray[np.float32]:
    field = bounds.field
    try:
        if not file.read(1):
            raise InputError(field, "is empty (0 bytes)", f"give at least {bounds.min_seconds:g} s of sound")
        file.seek(0)
        with soundfile.SoundFile(file) as sound:
            rate = int(sound.samplerate)
            check_rate(rate, field)
            if sound.frames == _UNKNOWN:
                problem = "has a header without its length, as of a stream"
                raise InputError(field, problem, "convert it, such as by ffmpeg -i SOUND out.wav")
            bounds.check(sound.frames, sound.channels, rate)
            return _resampled(_blocks(sound, bounds), rate, sample_rate, bounds)
    except soundfile.LibsndfileError as error:
        raise _unreadable(error, field) from error
    # TypeError: soundfile requires a rate for headerless formats, which it recognizes by the file's name.
    except (soundfile.SoundFileError, TypeError, OSError) as error:
        problem = f"is not a sound file that can be read ({shortened(str(error))})"
        raise InputError(field, problem, _SUPPORTED) from error


_SUPPORTED = "give a wav, flac, ogg or mp3 file"
_UNKNOWN_FORMAT, _UNSUPPORTED_ENCODING, _UNIMPLEMENTED = 1, 4, 18
"""Error codes of libsndfile."""


def _unreadable(error: soundfile.LibsndfileError, field: str) -> InputError:
    """libsndfile's own text is used only if it concerns the content: for some damaged files, mp3 above all, it reports a missing
    file, or an error of its own."""
    text = error.error_string.rstrip(".")
    if error.code == _UNKNOWN_FORMAT:
        return InputError(field, "is not a sound file that can be read (its format is unknown)", _SUPPORTED)
    convert = "convert it, such as by ffmpeg -i SOUND out.wav"
    if error.code in (_UNSUPPORTED_ENCODING, _UNIMPLEMENTED):
        return InputError(field, "is a sound file in an encoding that cannot be read", convert)
    found = f" ({shortened(text.removeprefix('Error : '))})" if text.startswith("Error") else ""
    return InputError(field, f"is a damaged sound file{found}", f"give it undamaged, or {convert}")


def _blocks(sound: soundfile.SoundFile, bounds: _Bounds) -> Iterator[NDArray[np.float32]]:
    """Yields the sound in mono, block by block. `SoundFile.blocks` would seek, which some codecs cannot."""
    most = max(1, _BLOCK // sound.channels)
    frames = 0
    while True:
        block: NDArray[np.float32] = sound.read(most, dtype="float32", always_2d=True)
        frames += len(block)
        bounds.check_samples(frames * sound.channels)  # a header may understate its length
        if len(block):
            yield block[:, 0] if sound.channels == 1 else block.mean(axis=1)
        if len(block) < most:
            return


def _resampled(
    blocks: Iterable[NDArray[np.float32]], rate: int, sample_rate: int, bounds: _Bounds
) -> NDArray[np.float32]:
    """The concatenated blocks at `sample_rate`, bit for bit as if they were resampled at once."""
    resampler = soxr.ResampleStream(rate, sample_rate, 1, dtype="float32") if rate != sample_rate else None
    made: list[NDArray[np.float32]] = []
    frames = 0
    for block in blocks:
        if not np.isfinite(block).all():
            remedy = "give finite samples between -1 and 1"
            raise InputError(bounds.field, "holds samples that are NaN or infinite", remedy)
        frames += len(block)
        made.append(block if resampler is None else resampler.resample_chunk(block))
    # For files too: a damaged one may hold less than its header states.
    bounds.check(frames, 1, rate)
    if resampler is not None:
        made.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    return made[0] if len(made) == 1 else np.concatenate(made)


def _base64(source: Mapping[str, object], field: str) -> str:
    data = source.get("data")
    if set(source) - {"data", "format"} or not isinstance(data, str):
        problem = f"has the keys {quoted(list(source))}"
        raise InputError(field, problem, 'give {"data": <base64 of the file>, "format": "wav"}')
    if not isinstance(source.get("format", ""), str):
        # Its value is ignored: files are recognized by their content.
        problem = f"is a {shortened(type(source['format']).__name__)}"
        raise InputError(f"{field}.format", problem, "give a string, or leave it out")
    return data


def _pair(source: tuple[object, ...], field: str) -> tuple[Samples, int]:
    if len(source) != 2 or not isinstance(source[0], np.ndarray | torch.Tensor):
        raise InputError(field, f"is a tuple of {len(source)}", "give (samples, sample rate in Hz)")
    samples, rate = source
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        problem = f"is a {shortened(type(rate).__name__)}"
        raise InputError(f"{field}[1]", problem, "give the sample rate in Hz as an integer")
    check_rate(int(rate), f"{field}[1]")
    return cast(Samples, samples), int(rate)
