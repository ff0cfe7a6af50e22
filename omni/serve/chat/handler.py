"""Answers the requests of `/v1/chat/completions`."""

from starlette.responses import Response

from omni.serve.body import Call
from omni.serve.chat.request import read_call
from omni.serve.chat.stream import events
from omni.serve.chat.whole import completion
from omni.serve.responses import event_stream, json_response
from omni.serve.server import Server


async def chat_completions(server: Server, call: Call) -> Response:
    chat = read_call(server, await call.json())
    if chat.stream:
        return event_stream(events(server, chat, call.slots), call.id, server.options.retry_after_seconds)
    async with server.generate("chat", chat.messages, chat.rename, slots=call.slots, **chat.arguments) as outputs:
        return json_response(await completion(server, chat, outputs))
