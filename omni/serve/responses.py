"""Responses: JSON of structs, and streams of server-sent events."""

from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omni.serve.disconnect import ClientGone
from omni.serve.errors import Described, reported

_ENCODER = msgspec.json.Encoder()


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """value: of structs, dicts and lists."""
    return Response(_ENCODER.encode(value), status, headers, "application/json")


def error_response(described: Described) -> Response:
    return json_response(described.body, described.status, described.headers)


def event(value: object, name: str | None = None) -> bytes:
    """A server-sent event with JSON. name: of its type; None for events without one."""
    head = f"event: {name}\n".encode() if name is not None else b""
    return b"%sdata: %s\n\n" % (head, _ENCODER.encode(value))


DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


class StreamingBytes(Response):
    """A body that is sent in pieces. The status is sent once the first piece is available, so an earlier error has a status of its
    own.

    pieces: closed at the end in any case. on_error: the last piece, where an error comes after the first; None ends the connection,
    which clients see as an error. The caller logs the error.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        media_type: str = "text/event-stream",
        on_error: Callable[[Exception], bytes] | None = None,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type)
        # Starlette's own has a length, of no body.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]
        self._pieces = pieces
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async for piece in self._pieces:
                if not started:
                    started = True
                    start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                    await send(start)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except ClientGone:
            raise
        except Exception as error:
            if not started or self._on_error is None:
                raise
            await send({"type": "http.response.body", "body": self._on_error(error), "more_body": True})
        finally:
            await self._pieces.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event_stream(events: AsyncGenerator[bytes], request_id: str, retry_after: int) -> StreamingBytes:
    """Server-sent events; an error after the first is an event too, the last one."""
    return StreamingBytes(events, on_error=lambda error: event(reported(error, request_id, retry_after).body))
