"""The ASGI app, and the table of its routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from omni.api import AsyncOmni
from omni.errors import ConfigError
from omni.serve.audio.speech import speech
from omni.serve.audio.transcription import transcriptions
from omni.serve.audio.voice_list import voices
from omni.serve.chat.handler import chat_completions
from omni.serve.completions import completions
from omni.serve.endpoint import Endpoint
from omni.serve.errors import HttpError, describe
from omni.serve.health import health
from omni.serve.metrics.handler import metrics
from omni.serve.models import model, models
from omni.serve.options import ServeOptions
from omni.serve.page import files
from omni.serve.page.activity import activity
from omni.serve.page.description import pipeline
from omni.serve.realtime.handler import no_websocket, websocket_routes
from omni.serve.request_id import RequestIds
from omni.serve.responses import error_response
from omni.serve.server import Server

ENDPOINTS = (
    Endpoint("POST", "/v1/chat/completions", chat_completions, kind="chat"),
    Endpoint("POST", "/v1/completions", completions, kind="completions"),
    Endpoint("POST", "/v1/audio/speech", speech, kind="speech"),
    Endpoint("POST", "/v1/audio/transcriptions", transcriptions, kind="transcription"),
    Endpoint("GET", "/v1/audio/voices", voices),
    Endpoint("GET", "/audio/voices", voices),
    Endpoint("GET", "/v1/realtime", no_websocket),
    Endpoint("GET", "/v1/models", models),
    Endpoint("GET", "/v1/models/{name:path}", model),
    Endpoint("GET", "/v1/omni/pipeline", pipeline),
    Endpoint("GET", "/v1/omni/activity", activity),
    Endpoint("GET", "/health", health, public=True),
    Endpoint("GET", "/", files.start, public=True),
    Endpoint("GET", "/page/{name:path}", files.file, public=True),
    Endpoint("GET", "/metrics", metrics),
)


def create_app(omni: AsyncOmni, options: ServeOptions | None = None) -> Starlette:
    """An ASGI app that answers with a loaded model, and closes it at its end. `app.state.server` is the state that its handlers
    share.

    The media policy is a setting of the model and must be strict: `overrides={"frontend.media.strict": True}`. Further settings of
    `frontend.media` allow single sources. Raises ConfigError if the policy is not strict.
    """
    if not omni.media.strict:
        problem = "is not set: requests could have the server open any file and any address"
        remedy = "load the model with it, and allow media by other settings of frontend.media"
        raise ConfigError("frontend.media.strict", problem, remedy)
    server = Server(omni, options or ServeOptions())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            async with omni:
                yield
                # A closed model has always "failed".
                server.failure = omni.failure
        finally:
            await server.encoders.close()

    app = Starlette(
        routes=[*(endpoint.route(server) for endpoint in ENDPOINTS), *websocket_routes(server)],
        middleware=[Middleware(RequestIds)],
        exception_handlers={HTTPException: _not_routed},
        lifespan=lifespan,
    )
    app.state.server = server
    return app


async def _not_routed(request: Request, error: Exception) -> Response:
    """Responds to an unknown path, or to an unsupported method."""
    assert isinstance(error, HTTPException)
    wrong_method = error.status_code == 405
    field, code = ("method", "method_not_allowed") if wrong_method else ("path", "not_found")
    shown = request.method if wrong_method else request.url.path
    problem = f"{shown[:200]!r} is not served here"
    headers = dict(error.headers or {})
    wrong = HttpError(error.status_code, code, field, problem, "see docs/serving.md", headers)
    return error_response(describe(wrong, 0))
