"""`GET /v1/omni/activity`: server-sent events with the activity of the stages, until the client disconnects or the server ends."""

from collections.abc import AsyncGenerator

from starlette.responses import Response

from omni.serve.body import Call
from omni.serve.responses import event, event_stream
from omni.serve.server import Server


async def activity(server: Server, call: Call) -> Response:
    return event_stream(_events(server), call.id, server.options.retry_after_seconds)


async def _events(server: Server) -> AsyncGenerator[bytes]:
    readings = server.activity.watch()
    try:
        async for reading in readings:
            yield event(reading)
    finally:
        await readings.aclose()
