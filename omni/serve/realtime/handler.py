"""The websocket of a session."""

import time
from contextlib import ExitStack

from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from omni.errors import OverloadedError, quoted
from omni.serve.access import check_key, check_origin
from omni.serve.body import Call
from omni.serve.errors import HttpError, reported
from omni.serve.models import check_model
from omni.serve.realtime.memory import SessionMemory
from omni.serve.realtime.session import RealtimeSession
from omni.serve.realtime.settings import first_settings
from omni.serve.request_id import request_id_of
from omni.serve.responses import error_response
from omni.serve.server import Server
from omni.utils.log import safe_logger

_log = safe_logger("omni.serve")

_PROTOCOL = "realtime"
"""Subprotocol of clients in browsers."""
_KEY = "openai-insecure-api-key."
"""Prefix of another one, with their key: they cannot send headers."""
_SWITCHED = 101
"""Status of a websocket's beginning."""


_PATH = "/v1/realtime"


def websocket_routes(server: Server) -> list[WebSocketRoute]:
    """The sessions', and a last one that refuses every other path."""

    async def endpoint(websocket: WebSocket) -> None:
        await _realtime(server, websocket)

    async def elsewhere(websocket: WebSocket) -> None:
        problem = f"{quoted(websocket.url.path)} is not a websocket"
        wrong = HttpError(404, "not_found", "path", problem, f"open {_PATH}")
        described = reported(wrong, request_id_of(websocket.scope), server.options.retry_after_seconds)
        await websocket.send_denial_response(error_response(described))

    return [WebSocketRoute(_PATH, endpoint), WebSocketRoute("/{path:path}", elsewhere)]


async def no_websocket(server: Server, call: Call) -> Response:
    """`GET /v1/realtime` by plain HTTP, as behind a proxy that gives no websockets on, or with a handshake that is refused."""
    if call.request.headers.get("upgrade", "").lower() == "websocket":
        remedy = "send a key of 16 bytes, version 13, and at most 128 headers of 8 KiB"
        raise HttpError(400, "invalid_handshake", "request", "is not a valid handshake of a websocket", remedy)
    headers = {"upgrade": "websocket", "connection": "upgrade"}
    remedy = "open it with ws:// or wss://; a proxy must give Upgrade on"
    raise HttpError(426, "websocket_required", "path", f"{_PATH} is a websocket", remedy, headers)


async def _realtime(server: Server, websocket: WebSocket) -> None:
    session_id = request_id_of(websocket.scope)
    protocols: list[str] = websocket.scope.get("subprotocols", [])
    since = time.perf_counter()
    with ExitStack() as held:
        try:
            check_origin(server, websocket.headers)
            check_key(server, _authorization(websocket, protocols))
            model = websocket.query_params.get("model", server.names[0])
            check_model(server, model)
            held.enter_context(server.limits.session())
        except Exception as error:
            if isinstance(error, OverloadedError):
                server.refused("realtime")
            described = reported(error, session_id, server.options.retry_after_seconds)
            server.metrics.responded(_PATH, described.status)
            await websocket.send_denial_response(error_response(described))
            return
        memory = SessionMemory(held.enter_context(server.limits.body()), server.options.max_session_bytes)
        await websocket.accept(_PROTOCOL if _PROTOCOL in protocols else None)
        server.metrics.responded(_PATH, _SWITCHED)
        try:
            await RealtimeSession(server, websocket, memory, first_settings(server, model), session_id).run()
        finally:
            _log.info("%s WEBSOCKET %s %.3f s", session_id, _PATH, time.perf_counter() - since)


def _authorization(websocket: WebSocket, protocols: list[str]) -> str:
    header = websocket.headers.get("authorization", "")
    keys = [each.removeprefix(_KEY) for each in protocols if each.startswith(_KEY)]
    return f"Bearer {keys[0]}" if keys and not header else header
