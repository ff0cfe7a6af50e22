"""Passes an HTTP request to its handler, and the response or error to the client."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from omni.errors import shortened
from omni.serve.access import check_key, check_origin
from omni.serve.body import Call, read_body
from omni.serve.disconnect import ClientGone, while_connected
from omni.serve.errors import GONE, reported
from omni.serve.limits import AnswerSlots, HeldBody
from omni.serve.request_id import request_id_of
from omni.serve.responses import error_response
from omni.serve.server import Server
from omni.utils.log import safe_logger

_log = safe_logger("omni.serve")

Handler = Callable[[Server, Call], Awaitable[Response]]
"""May raise any OmniError, which becomes a response. It is cancelled when the client disconnects."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the table of routes. public: served without a key. kind: of the requests that it generates for, as observers know
    it. If the server is full, they are refused before their body is read, while it comes, or before anything is read from it."""

    method: str
    path: str
    handler: Handler
    public: bool = False
    kind: str | None = None

    def route(self, server: Server) -> Route:
        return Route(self.path, _App(self, server), methods=[self.method])


class _App:
    """The ASGI app of one endpoint."""

    def __init__(self, endpoint: Endpoint, server: Server) -> None:
        self._endpoint = endpoint
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        options = self._server.options
        exchange = _Exchange(scope, send, options.stalled_seconds)
        request = Request(scope, receive)
        try:
            with self._server.limits.body() as held, self._server.limits.answer_slots() as slots:
                if not self._endpoint.public:
                    check_key(self._server, request.headers.get("authorization", ""))
                    if request.method == "POST":
                        check_origin(self._server, request.headers)
                if self._endpoint.kind is not None:
                    self._server.check_free_slot(self._endpoint.kind)
                call = Call(request, await self._body(request, held, slots), exchange.id, slots)
                await while_connected(receive, self._answer(call, exchange))
        except (ClientGone, ClientDisconnect):
            exchange.status = GONE
        except Exception as error:
            if exchange.started:
                # The status has been sent, so only closing the connection tells the client that the body is incomplete. uvicorn
                # logs the error.
                raise
            response = error_response(reported(error, exchange.id, options.retry_after_seconds))
            with suppress(ClientGone):
                await response(scope, receive, exchange.send)
        finally:
            exchange.log()
            self._server.metrics.responded(self._endpoint.path, exchange.status)

    async def _body(self, request: Request, held: HeldBody, slots: AnswerSlots) -> bytes:
        server, kind = self._server, self._endpoint.kind
        if kind is None:
            return await read_body(request, server.options, held)
        with server.counting_refusals(kind):
            # A request does not count towards the limit while its body arrives: slow clients would block others.
            body = await read_body(request, server.options, held, server.limits.check)
            slots.take(1)
        return body

    async def _answer(self, call: Call, exchange: "_Exchange") -> None:
        response = await self._endpoint.handler(self._server, call)
        await response(call.request.scope, call.request.receive, exchange.send)


class _Exchange:
    """The response to the client. status: for the log, 0 while there is none."""

    def __init__(self, scope: Scope, send: Send, stalled_seconds: float) -> None:
        self.id = request_id_of(scope)
        self.status = 0
        self.started = False
        self._scope = scope
        self._send = send
        self._stalled_seconds = stalled_seconds
        self._since = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Raises ClientGone if the client reads no data for too long."""
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
        try:
            async with asyncio.timeout(self._stalled_seconds):
                await self._send(message)
        except TimeoutError as error:
            raise ClientGone from error

    def log(self) -> None:
        seconds = time.perf_counter() - self._since
        # The path may contain line breaks.
        path = shortened(self._scope["path"])
        _log.info("%s %s %s %d %.3f s", self.id, self._scope["method"], path, self.status, seconds)
