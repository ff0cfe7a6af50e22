"""Sources of media: a path, a URL, a data URI, base64 text or bytes. Decodes no media."""

import base64
import binascii
import io
import os
from collections.abc import Mapping
from typing import BinaryIO
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import url2pathname

from omni.errors import InputError, check_unicode, quoted, shortened
from omni.media.download import MediaDownloader
from omni.media.local import check_path, open_file, too_large
from omni.media.options import MediaOptions
from omni.media.url import check_url, failed, is_remote

Location = str | os.PathLike[str]
"""A path, a `file:`, `http:` or `https:` URL, or a data URI."""

Downloaded = Mapping[str, bytes]
"""Downloaded contents, by URL as given."""


def check_location(source: Location, field: str, options: MediaOptions) -> None:
    """Raises InputError if the text of a source is forbidden. Opens no file and no connection."""
    if is_remote(source):
        check_url(str(source), field, options)
    elif not _is_data(source):
        check_path(_path(source, field), field, options)


def open_location(
    source: Location, *, field: str, options: MediaOptions, max_bytes: int, downloaded: Downloaded | None = None
) -> BinaryIO:
    """A file's content, from its start. downloaded: None downloads a URL here. Raises InputError for a source that is forbidden
    (`options`), missing, or larger than `max_bytes`."""
    if is_remote(source):
        return io.BytesIO(_limited(_fetched(str(source), field, options, downloaded), field, max_bytes))
    if _is_data(source):
        return io.BytesIO(_decode_data_uri(str(source), field, max_bytes))
    return open_file(_path(source, field), field, options, max_bytes)


def decode_base64(text: str, *, field: str, max_bytes: int) -> bytes:
    """The bytes of standard base64 text. Raises InputError for invalid base64, or if it is too long."""
    # Including white space, which takes work too.
    if len(text) > 2 * max_bytes:
        raise too_large(field, max_bytes)
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        problem = f"is not base64 ({shortened(str(error))})"
        raise InputError(field, problem, "encode the file's bytes as standard base64") from error
    return _limited(data, field, max_bytes)


def _fetched(url: str, field: str, options: MediaOptions, downloaded: Downloaded | None) -> bytes:
    if downloaded is None:
        downloads = MediaDownloader(options)
        try:
            return downloads.fetch(url, field).result()
        finally:
            downloads.close()
    check_url(url, field, options)
    if url not in downloaded:
        raise failed(url, field, "it was not downloaded")
    return downloaded[url]


def _is_data(source: Location) -> bool:
    return isinstance(source, str) and source[:5].lower() == "data:"


def _path(source: Location, field: str) -> str:
    """Raises InputError for a malformed `file:` URL, and for a path that is not text."""
    path = os.fspath(source)
    if isinstance(source, str) and source[:5].lower() == "file:":
        try:
            path = url2pathname(urlsplit(source).path)
        except ValueError as error:
            raise InputError(field, f"{quoted(source)} is not a URL", "write file:///folder/name") from error
    if not isinstance(path, str):
        raise InputError(field, f"is a path of {type(path).__name__}", "give it as a string")
    return path


def _decode_data_uri(uri: str, field: str, max_bytes: int) -> bytes:
    header, comma, body = uri.partition(",")
    if not comma:
        raise InputError(field, "is a data URI without a comma", "write data:<type>;base64,<data>")
    if len(body) > 4 * max_bytes:
        raise too_large(field, max_bytes)
    data = unquote_to_bytes(check_unicode(body, field))
    if not header.lower().endswith(";base64"):
        return _limited(data, field, max_bytes)
    return decode_base64(data.decode("ascii", "replace"), field=field, max_bytes=max_bytes)


def _limited(data: bytes, field: str, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise too_large(field, max_bytes)
    return data
