"""The endpoint `GET /v1/audio/voices`."""

import msgspec
from starlette.responses import Response

from omni.serve.body import Call
from omni.serve.responses import json_response
from omni.serve.server import Server


class ListedVoice(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str


class VoiceList(msgspec.Struct, frozen=True, kw_only=True):
    voices: tuple[ListedVoice, ...]


async def voices(server: Server, call: Call) -> Response:
    return json_response(VoiceList(voices=tuple(ListedVoice(id=name, name=name) for name in server.voices.names)))
