"""Writes speech: to a wav file when it is complete, or to a stream as it comes."""

import fcntl
import io
import os
import re
import select
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import soundfile
import torch

from omni.cli.streams import is_closed
from omni.errors import InputError
from omni.media import save_wav
from omni.timeline.file import REMEDY
from omni.utils.files import is_special, write_problem

STDOUT = 1
_NAMES = {"-": STDOUT, "/dev/stdout": STDOUT, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
_UNKNOWN = 0xFFFFFFFF
"""Length in the header of a wav whose length is unknown."""
_HEADER_BYTES = 44


class Speech(Protocol):
    """The speech of one answer. Raises InputError if it cannot be written."""

    def push(self, samples: torch.Tensor, sample_rate: int) -> None:
        """Writes samples, float32 `[n]`."""

    def finish(self) -> bool:
        """The speech is complete. Returns whether there was any."""


class WavFile:
    """A file, written at the end; an existing one is unchanged until then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._samples: list[torch.Tensor] = []
        self._sample_rate = 0

    def push(self, samples: torch.Tensor, sample_rate: int) -> None:
        self._samples.append(samples)
        self._sample_rate = sample_rate

    def finish(self) -> bool:
        if self._samples:
            save_wav(self._path, torch.cat(self._samples), self._sample_rate)
        return bool(self._samples)


class WavStream:
    """A pipe, a device, or a file opened by another process. Only the header of such a file gets a length, at the end."""

    def __init__(self, name: str, opened: Callable[[], int], *, raw: bool) -> None:
        """opened: returns the descriptor; it may wait for a reader. raw: samples only, without a header."""
        self._name = name
        self._opened = opened
        self._raw = raw
        self._descriptor: int | None = None
        self._start: int | None = None
        self._sample_rate = 0
        self._length = 0

    def push(self, samples: torch.Tensor, sample_rate: int) -> None:
        pcm = io.BytesIO()
        soundfile.write(pcm, samples.clamp(-1, 1).numpy(), sample_rate, format="RAW", subtype="PCM_16", endian="LITTLE")
        try:
            if self._descriptor is None:
                self._descriptor = self._opened()
                self._start = _place(self._descriptor)
                self._sample_rate = sample_rate
                if not self._raw:
                    _write(self._descriptor, _header(sample_rate, _UNKNOWN))
            _write(self._descriptor, pcm.getbuffer())
        except OSError as error:
            raise self._failed(error) from error
        self._length += pcm.getbuffer().nbytes

    def finish(self) -> bool:
        if self._descriptor is None:
            return False
        if not self._raw and self._start is not None and self._length < _UNKNOWN - _HEADER_BYTES:
            try:
                os.pwrite(self._descriptor, _header(self._sample_rate, self._length), self._start)
            except OSError as error:
                raise self._failed(error) from error
        return True

    def _failed(self, error: OSError) -> InputError:
        problem = f"{self._name} cannot be written ({error.strerror})"
        return InputError("--out", problem, "send it where it can be written")


def descriptor_of(name: str) -> int | None:
    """The open descriptor of a name: `-`, `/dev/stdout`, `/dev/fd/3`. None for any other."""
    match = _DESCRIPTOR.fullmatch(name)
    return int(match[1]) if match else _NAMES.get(name)


def speech_to(name: str, sample: int, samples: int, *, raw: bool = False) -> Speech:
    """The file or stream for the speech of one of several answers. raw: PCM without a header, for a stream. Writes nothing yet.
    Raises InputError for an unwritable name."""
    descriptor = descriptor_of(name)
    if descriptor is None and not is_special(name):
        if raw:
            raise InputError("--raw", f"is given, and {name} is a file", "leave out --out, and redirect stdout")
        path = numbered(Path(name), sample, samples)
        problem = write_problem(path)
        if problem is not None:
            raise InputError("--out", problem, REMEDY)
        return WavFile(path)
    if samples > 1:
        remedy = "give the name of a file, which is numbered, or leave out --n"
        raise InputError("--out", f"{name} takes one answer, and --n asks for {samples}", remedy)
    if descriptor is not None:
        if is_closed(descriptor):
            raise InputError("--out", f"{name} cannot be written (it is closed)", "open it, or give a file name")
        return WavStream(name, lambda: descriptor, raw=raw)
    if not os.access(name, os.W_OK):
        raise InputError("--out", f"{name} cannot be written (Permission denied)", REMEDY)
    return WavStream(name, lambda: os.open(name, os.O_WRONLY | os.O_CLOEXEC), raw=raw)


def numbered(path: Path, sample: int, samples: int) -> Path:
    """The file of one of several answers."""
    return path if samples == 1 else path.with_stem(f"{path.stem}-{sample}")


def _place(descriptor: int) -> int | None:
    """The position of a file; None for other descriptors and append-only files."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
    return None if appends else os.lseek(descriptor, 0, os.SEEK_CUR)


def _write(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # another process made the descriptor non-blocking
            select.select([], [descriptor], [])


def _header(sample_rate: int, length: int) -> bytes:
    """The header of a wav, mono 16-bit PCM. length: bytes of samples."""
    riff = _UNKNOWN if length == _UNKNOWN else length + _HEADER_BYTES - 8
    layout = (16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", riff, b"WAVE", b"fmt ", *layout, b"data", length)
