"""Reads a form with a file from the body in memory."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from omni.errors import InputError, shortened
from omni.serve.body import Call
from omni.serve.errors import HttpError
from omni.serve.options import ServeOptions

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_PARTS = 65
_MAX_TEXT = 2**16
"""Bytes of a field beside the file, and of the headers of a part."""


@dataclass(slots=True)
class _Part:
    """A part of the form. name: of its field. is_file: whether it has a file's name."""

    header: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    disposition: bytes = b""
    data: bytearray = field(default_factory=bytearray)
    name: str = ""
    is_file: bool = False


async def read_upload(call: Call, options: ServeOptions) -> tuple[bytes, dict[str, str]]:
    """Returns the content of `file`, and the other fields. The values of a repeated field, `NAME[]`, are joined by commas. Raises
    InputError."""
    kind, parameters = parse_options_header(call.request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise HttpError(415, "invalid_content_type", "body", "is not a form", "send multipart/form-data with a file")
    boundary = parameters.get(b"boundary", b"")
    if not boundary:
        raise _wrong("its content type names no boundary")
    # Reading a large form takes a while.
    return await asyncio.to_thread(_read, call.take_body(), boundary, options)


def _read(body: bytes, boundary: bytes, options: ServeOptions) -> tuple[bytes, dict[str, str]]:
    parts = _parts(body, boundary)
    files = [part.data for part in parts if part.name == "file" and part.is_file]
    if len(files) != 1:
        raise InputError("file", "is given twice" if files else "is missing", "give one file with sound")
    if len(files[0]) > options.max_upload_bytes:
        problem = f"is larger than {options.max_upload_bytes:,} bytes"
        raise HttpError(413, "file_too_large", "file", problem, "split it over several requests")
    fields: dict[str, list[str]] = {}
    for part in parts:
        if part.name != "file" and not part.is_file:
            fields.setdefault(shortened(part.name), []).append(part.data.decode("utf-8", "replace"))
    return bytes(files[0]), {name: ",".join(values) for name, values in fields.items()}


def _parts(body: bytes, boundary: bytes) -> list[_Part]:
    """Raises HttpError."""
    reader = _Reader()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _wrong(shortened(str(error))) from error
    if not reader.ended:
        raise _wrong("it ends within a part")
    return reader.parts


def _wrong(why: str) -> HttpError:
    return HttpError(400, "invalid_form", "body", f"is not a form ({why})", "correct it")


class _Reader:
    """The parts so far. ended: whether the last boundary came."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.ended = False

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) == _MAX_PARTS:
            raise _wrong(f"it has more than {_MAX_PARTS} parts")
        self.parts.append(_Part())

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].value += data[start:end]

    def _header_end(self) -> None:
        part = self.parts[-1]
        if part.header.lower() == b"content-disposition":
            part.disposition = bytes(part.value)
        part.header.clear()
        part.value.clear()

    def _headers_finished(self) -> None:
        part = self.parts[-1]
        _, options = parse_options_header(part.disposition)
        if b"name" not in options:
            raise _wrong("a part has no name")
        part.name = options[b"name"].decode("utf-8", "replace")
        part.is_file = b"filename" in options

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self.parts[-1]
        if not part.is_file and len(part.data) + end - start > _MAX_TEXT:
            raise _wrong(f"{shortened(part.name)} has more than {_MAX_TEXT:,} bytes")
        part.data += data[start:end]

    def _end(self) -> None:
        self.ended = True
