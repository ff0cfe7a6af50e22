"""Where media comes from: a path, a URL, a data URI, base64 text or bytes. Decoding is somebody else's work."""

import base64
import binascii
import os
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import url2pathname

from omni.errors import InputError

Location = str | os.PathLike[str]
"""A path, a `file:`, `http:` or `https:` URL, or a data URI."""

_BLOCK = 1 << 16


def open_location(source: Location, *, field: str, max_bytes: int, timeout_seconds: float = 30.0) -> Path | bytes:
    """A file that exists, or the bytes that a URL or data URI holds.

    Raises InputError if there is no such thing, if it holds more than `max_bytes`, or if a download takes longer than
    `timeout_seconds` in all.
    """
    if not isinstance(source, str):
        return _existing_file(Path(source), field, max_bytes)
    scheme = source[:8].lower().partition(":")[0]
    if scheme == "data":
        return _decode_data_uri(source, field, max_bytes)
    if scheme in ("http", "https"):
        return _download(source, field, max_bytes, timeout_seconds)
    if scheme == "file":
        return _existing_file(Path(url2pathname(urlsplit(source).path)), field, max_bytes)
    return _existing_file(Path(source).expanduser(), field, max_bytes)


def decode_base64(text: str, *, field: str, max_bytes: int) -> bytes:
    """The bytes that standard base64 text stands for. Raises InputError if it is no base64, or too long."""
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(field, f"is not base64 ({error})", "encode the file's bytes as standard base64") from error
    return _limited(data, field, max_bytes)


def _existing_file(path: Path, field: str, max_bytes: int) -> Path:
    try:
        found = path.is_file()
        size = path.stat().st_size if found else 0
    except (OSError, ValueError) as error:
        # Base64 text given where a path belongs ends here: its "name" is too long.
        _no_file(str(path), field, error)
    if not found:
        _no_file(str(path), field, None)
    if size > max_bytes:
        _too_big(field, max_bytes)
    return path


def _no_file(name: str, field: str, error: Exception | None) -> NoReturn:
    shown = name if len(name) <= 80 else f"{name[:60]}..."
    remedy = "give the path of an existing file, a URL or a data URI"
    raise InputError(field, f"there is no file {shown!r}", remedy) from error


def _decode_data_uri(uri: str, field: str, max_bytes: int) -> bytes:
    header, comma, body = uri.partition(",")
    if not comma:
        raise InputError(field, "is a data URI without a comma", "write data:<type>;base64,<data>")
    if not header.endswith(";base64"):
        return _limited(unquote_to_bytes(body), field, max_bytes)
    return decode_base64(unquote_to_bytes(body).decode("ascii", "replace"), field=field, max_bytes=max_bytes)


def _download(url: str, field: str, max_bytes: int, timeout_seconds: float) -> bytes:
    deadline = time.monotonic() + timeout_seconds
    data = bytearray()
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "omni"})
        with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
            if int(response.headers.get("Content-Length") or 0) > max_bytes:
                _too_big(field, max_bytes)
            # The socket's own timeout starts anew with each block; the deadline holds for all of them.
            while block := response.read1(_BLOCK):
                data += block
                if len(data) > max_bytes:
                    _too_big(field, max_bytes)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no end after {timeout_seconds:g} s")
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            # It is the response, too, and holds the connection open.
            error.close()
        raise InputError(
            field, f"could not download {url} ({error})", "check the URL, or give the file itself"
        ) from error
    return bytes(data)


def _limited(data: bytes, field: str, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        _too_big(field, max_bytes)
    return data


def _too_big(field: str, max_bytes: int) -> NoReturn:
    raise InputError(field, f"is larger than {max_bytes / 2**20:g} MiB", "give a smaller file")
