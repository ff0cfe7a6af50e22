"""The endpoint `GET /metrics`."""

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from omni.serve.body import Call
from omni.serve.server import Server


async def metrics(server: Server, call: Call) -> Response:
    return Response(await server.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})
