"""`GET /health`: 200 while the engine runs, 503 otherwise."""

from starlette.responses import Response

from omni.serve.body import Call
from omni.serve.responses import json_response
from omni.serve.server import Server


async def health(server: Server, call: Call) -> Response:
    """While an engine is started again, requests are taken and wait; another server would answer them sooner."""
    if server.omni.failure is not None:
        return json_response({"status": "failed"}, 503)
    if server.omni.interruption is not None:
        return json_response({"status": "restarting"}, 503)
    return json_response({"status": "ok"})
