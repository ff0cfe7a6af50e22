"""`GET /v1/models`, and the model that a request names."""

import time

import msgspec
from starlette.responses import Response

from omni.errors import quoted
from omni.serve.body import Call
from omni.serve.errors import HttpError
from omni.serve.responses import json_response
from omni.serve.server import Server

_STARTED = int(time.time())


class Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int = _STARTED
    object: str = "model"
    owned_by: str = "omni"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[Model, ...]
    object: str = "list"


async def models(server: Server, call: Call) -> Response:
    return json_response(ModelList(data=tuple(Model(id=name) for name in server.names)))


async def model(server: Server, call: Call) -> Response:
    """`GET /v1/models/NAME`; a name may have slashes."""
    name = call.request.path_params["name"]
    check_model(server, name)
    return json_response(Model(id=name))


def check_model(server: Server, name: str) -> None:
    """Raises HttpError for a name that the server does not have."""
    if name not in server.names:
        remedy = f"use {' or '.join(map(quoted, server.names))}"
        raise HttpError(404, "model_not_found", "model", f"{quoted(name)} is not served here", remedy)
