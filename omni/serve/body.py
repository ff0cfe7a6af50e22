"""Bodies of requests: read within limits, decoded with errors that name the field."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from omni.errors import InputError, check_unicode, quoted, shortened
from omni.sampling import SamplingParams
from omni.serve.errors import HttpError
from omni.serve.limits import AnswerSlots, HeldBody
from omni.serve.options import ServeOptions
from omni.utils.collection import no_collection
from omni.utils.struct_types import STRUCT_TYPES

T = TypeVar("T")

_LARGE = 2**18
"""Bytes of JSON that are decoded beside the event loop: they take a millisecond."""


@dataclass(slots=True)
class Call:
    """A request with its body. id: as in `x-request-id`. slots: of its answers."""

    request: Request
    body: bytes
    id: str
    slots: AnswerSlots

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises InputError."""
        body = self.take_body()
        return _decode(body) if len(body) < _LARGE else await asyncio.to_thread(_decode, body)

    def take_body(self) -> bytes:
        """May be called once: the decoded value is kept during the answer, and the body is freed."""
        body, self.body = self.body, b""
        return body


async def read_body(
    request: Request, options: ServeOptions, held: HeldBody, check: Callable[[], object] = lambda: None
) -> bytes:
    """check: called for each piece; raises OverloadedError where no slot is free for the request.

    Raises HttpError for a body that is too large or comes too slowly, OverloadedError where all bodies hold too much, and
    ClientDisconnect."""
    if _announced(request) > options.max_body_bytes:
        raise _too_large(options)
    # One growing buffer: thousands of pieces would fragment the heap.
    body = bytearray()
    try:
        async with asyncio.timeout(options.body_seconds):
            async for piece in request.stream():
                if len(body) + len(piece) > options.max_body_bytes:
                    raise _too_large(options)
                check()
                held.add(len(piece))
                body += piece
    except TimeoutError as error:
        problem = f"did not come within {options.body_seconds:g} s"
        raise HttpError(408, "request_timeout", "body", problem, "send it faster") from error
    return bytes(body)


def convert(value: object, kind: type[T], at: str = "", *, strict: bool = True) -> T:
    """The value as a struct. at: its path in the body. strict: whether numbers must be numbers; a form has texts only. Raises
    InputError for the first field that is wrong. For any thread."""
    try:
        with STRUCT_TYPES:
            return msgspec.convert(value, kind, str_keys=True, strict=strict)
    except msgspec.ValidationError as error:
        raise _wrong(error, at) from error


def split_sampling(body: Mapping[str, Any], without: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The body's fields, and those that are sampling parameters of omni. without: names that OpenAI gives another meaning."""
    names = frozenset(SamplingParams.__struct_fields__) - without
    return (
        {name: value for name, value in body.items() if name not in names},
        {name: value for name, value in body.items() if name in names},
    )


def decode_json(text: str | bytes) -> object:
    """Raises DecodeError, UnicodeError, or RecursionError: where JSON is nested too deeply, the parser stops at the limit of the
    recursion. Finalizers that the garbage collector runs there, of anything in the process, would fail and be lost."""
    with no_collection():
        return msgspec.json.decode(text)


def check_surrogates(text: str | bytes) -> None:
    """Raises InputError, naming the field, for a lone surrogate in JSON, which msgspec takes for a fault of the syntax. Does not
    raise for any other fault."""
    try:
        whole = text.decode(errors="surrogatepass") if isinstance(text, bytes) else text
        with no_collection():  # as in `decode_json`
            waiting: list[tuple[str, object]] = [("", json.loads(whole))]
    except (ValueError, RecursionError):
        return
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            check_unicode(value, shortened(path) or "body")
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        elif isinstance(value, dict):
            for name, each in value.items():
                below = f"{path}.{name}" if path else name
                waiting.append((below, each))
                check_unicode(name, shortened(below))


def _decode(body: bytes) -> dict[str, Any]:
    try:
        value = decode_json(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        check_surrogates(body)
        problem = f"is not JSON ({shortened(str(error))})"
        raise HttpError(400, "invalid_json", "body", problem, "send a JSON object") from error
    if not isinstance(value, dict):
        raise HttpError(400, "invalid_json", "body", f"is a JSON {type(value).__name__}", "send a JSON object")
    return value


def _announced(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _too_large(options: ServeOptions) -> HttpError:
    problem = f"is larger than {options.max_body_bytes:,} bytes"
    # The connection stays open, and the protocol drops the rest of the body: a client that cannot send it would not read why.
    return HttpError(413, "body_too_large", "body", problem, "send less in one request")


_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


def _wrong(error: msgspec.ValidationError, at: str) -> InputError:
    problem, _, place = str(error).rpartition(" - at ") if " - at " in str(error) else (str(error), "", "")
    path = re.search(r"`(?:\$|key in \$)\.?([^`]*)`", place)
    below = [part for part in (at, path[1] if path else "") if part]
    for pattern, said, remedy in (
        (_UNKNOWN, "is not known here", "leave it out"),
        (_MISSING, "is missing", "give it"),
    ):
        named = pattern.fullmatch(problem)
        if named:
            return InputError(shortened(".".join([*below, named[1] or quoted("")])), said, remedy)
    return InputError(shortened(".".join(below)) or "body", shortened(problem), "give a value of that type")
