"""Malformed events of realtime sessions: each is handled or refused by an error event, and the session goes on."""

import asyncio
import base64
import copy
import json
import random
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.omni.serve.http_server import Served
from tests.omni.serve.realtime import session, speech
from tests.omni.serve.test_fuzz import encoded, mutated
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

_AUDIO = base64.b64encode(speech(0.2).tobytes()).decode()
_TEXT = {"type": "input_text", "text": "hello"}
_SESSION: dict[str, Any] = {
    "type": "realtime",
    "instructions": "be kind",
    "output_modalities": ["text"],
    "max_output_tokens": 4,
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 200},
            "transcription": {"model": "whisper-1", "language": "en"},
        },
        "output": {"voice": "alloy", "format": {"type": "audio/pcm", "rate": 24000}},
    },
}
MESSAGE = {"type": "message", "role": "user"}
EVENTS: list[dict[str, Any]] = [
    {"type": "session.update", "session": _SESSION},
    {"type": "input_audio_buffer.append", "audio": _AUDIO},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {
        "type": "conversation.item.create",
        "previous_item_id": "root",
        "item": {**MESSAGE, "id": "item_1", "content": [_TEXT]},
    },
    {
        "type": "conversation.item.create",
        "item": {**MESSAGE, "content": [{"type": "input_audio", "audio": _AUDIO}, _TEXT]},
    },
    {"type": "conversation.item.retrieve", "item_id": "item_1"},
    {"type": "conversation.item.truncate", "item_id": "item_1", "content_index": 0, "audio_end_ms": 20},
    {"type": "conversation.item.delete", "item_id": "item_1"},
    {"type": "response.create", "response": {"output_modalities": ["text"], "max_output_tokens": 4, "input": []}},
    {"type": "response.cancel", "response_id": "resp_1"},
]


def malformed(dice: random.Random, spoken: str) -> str | bytes:
    """A message of a client; one in ten is binary. spoken: the id of an item with sound."""
    event = {**copy.deepcopy(dice.choice(EVENTS)), "event_id": "odd"}
    if "item_id" in event:
        event["item_id"] = spoken
    event = mutated(event, dice)
    data = encoded(event, dice)
    # Text that is not UTF-8 ends a websocket by its own rules.
    return data if dice.random() < 0.1 else data.decode(errors="replace")


async def answered(connection: ClientConnection, probe: str) -> list[dict[str, Any]]:
    """The events until the error about the event `probe`, which names an item that is not there."""
    await connection.send(json.dumps({"type": "conversation.item.retrieve", "item_id": "none", "event_id": probe}))
    events: list[dict[str, Any]] = []
    while True:
        async with asyncio.timeout(PATIENCE_SECONDS):
            event = json.loads(await connection.recv())
        if event["type"] == "error" and event["error"]["event_id"] == probe:
            return events
        events.append(event)


async def spoken_item(connection: ClientConnection) -> str:
    """The id of an item with a response's sound."""
    await connection.send(json.dumps({"type": "conversation.item.create", "item": {**MESSAGE, "content": [_TEXT]}}))
    await connection.send(json.dumps({"type": "response.create"}))
    while True:
        async with asyncio.timeout(PATIENCE_SECONDS):
            event = json.loads(await connection.recv())
        if event["type"] == "response.done":
            item: str = event["response"]["output"][0]["id"]
            return item


async def storm(served: Served, dice: random.Random) -> int:
    """Sends 30 malformed events in a session. Returns the number of errors."""
    refused = 0
    async with connect(f"ws{served.url.removeprefix('http')}/v1/realtime", max_size=None) as connection:
        spoken = await spoken_item(connection)
        for number in range(30):
            sent = malformed(dice, spoken)
            await connection.send(sent)
            for event in await answered(connection, f"probe-{number}"):
                if event["type"] == "error":
                    error = event["error"]
                    assert error["type"] == "invalid_request_error", (error, sent[:2000])
                    assert 5 < len(error["message"]) < 2000, (error, sent[:2000])
                    refused += 1
            # A valid event may have started a response without an end.
            await connection.send(json.dumps({"type": "response.cancel", "event_id": "end"}))
    return refused


@pytest.mark.parametrize(("seed", "rounds"), few(1, [(1, 5), *((seed, 10) for seed in range(1, 30))], SLOW))
def test_malformed_events_are_refused_and_the_session_goes_on(echo: Served, seed: int, rounds: int) -> None:
    """30 in each round, beside a session that talks."""

    async def run() -> int:
        dice = random.Random(seed)
        async with session(echo) as beside:
            await beside.manual()
            refused = 0
            for text in map(str, range(rounds)):
                storming = asyncio.create_task(storm(echo, dice))
                await beside.say(text)
                assert (await beside.respond()).status == "completed"
                refused += await storming
            return refused

    assert asyncio.run(run()) > 12 * rounds
    echo.assert_nothing_held()
