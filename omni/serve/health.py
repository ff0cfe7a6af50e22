"""`GET /health`: 200 while the engine takes requests, 503 otherwise."""

from starlette.responses import Response

from omni.errors import shortened
from omni.serve.body import Call
from omni.serve.responses import json_response
from omni.serve.server import Server


async def health(server: Server, call: Call) -> Response:
    failure = server.omni.failure
    if failure is None:
        return json_response({"status": "ok"})
    return json_response({"status": "failed", "error": shortened(str(failure))}, 503)
