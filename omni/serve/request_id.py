"""Ids of requests: `x-request-id`, the client's or a new one, in answers, logs and errors."""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_VALID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
"""Messages with the headers of a response; the last refuses a websocket."""


def request_id_of(scope: Scope) -> str:
    """The id of a request that came through `RequestIds`."""
    return str(scope["state"]["request_id"])


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


class RequestIds:
    """Middleware that names every request. A client's own id is kept if it can be written in a line of a log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _VALID.fullmatch(given) else new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id

        async def named(message: Message) -> None:
            if message["type"] in _STARTS:
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        return await self._app(scope, receive, named)
