"""Clients of `/v1/realtime`: the OpenAI SDK's, with every event checked against its types."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from tests.omni.serve.http_server import Served
from tests.omni.serve.test_chat import strict
from tests.support.patience import PATIENCE_SECONDS

PCM_RATE = 24000
MESSAGE: dict[str, Any] = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}


class Client:
    """events: all that arrived, as the SDK reads them."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Any] = []

    async def next(self) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            data = await self.connection.recv_bytes()
        event = self.connection.parse_event(data)
        # The SDK gives an event without a fitting type the wrong one.
        strict(type(event), json.loads(data))
        self.events.append(event)
        return event

    async def until(self, *types: str) -> Any:
        """The first further event of a type."""
        while (event := await self.next()).type not in types:
            assert event.type != "error" or "error" in types, event
        return event

    async def send(self, **event: Any) -> None:
        await self.connection.send(event)  # type: ignore[arg-type]

    async def update(self, **session: Any) -> Any:
        await self.send(type="session.update", session={"type": "realtime", **session})
        return (await self.until("session.updated")).session

    async def manual(self, **session: Any) -> Any:
        """Turns are committed by the client."""
        return await self.update(audio={"input": {"turn_detection": None}}, **session)

    async def say(self, text: str, **item: Any) -> Any:
        """An item of the user."""
        content = [{"type": "input_text", "text": text}]
        event = {"type": "message", "role": "user", "content": content, **item}
        await self.send(type="conversation.item.create", item=event)
        return (await self.until("conversation.item.done")).item

    async def append(self, samples: NDArray[np.int16]) -> None:
        await self.send(type="input_audio_buffer.append", audio=base64.b64encode(samples.tobytes()).decode())

    async def respond(self, **response: Any) -> Any:
        """The whole response."""
        await self.send(type="response.create", **({"response": response} if response else {}))
        return (await self.until("response.done")).response

    async def wrong(self, **event: Any) -> Any:
        """The error of a bad event."""
        await self.send(**event)
        return (await self.until("error")).error

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    def text(self, kind: str) -> str:
        return "".join(event.delta for event in self.of(kind))

    def sound(self) -> NDArray[np.int16]:
        return np.frombuffer(b"".join(base64.b64decode(e.delta) for e in self.of("response.output_audio.delta")), "<i2")


@asynccontextmanager
async def session(server: Served, model: str = "tiny") -> AsyncIterator[Client]:
    """From session.created on."""
    async with server.async_client() as openai, openai.realtime.connect(model=model) as connection:
        client = Client(connection)
        assert (await client.next()).type == "session.created"
        yield client


def session_update(**fields: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **fields}}


def item_create(**fields: Any) -> dict[str, Any]:
    return {"type": "conversation.item.create", "item": {**MESSAGE, **fields}}


def speech(seconds: float, rate: int = PCM_RATE) -> NDArray[np.int16]:
    """A voice for WebRTC's detector: harmonics of a wavering pitch below two formants, in syllables."""
    time_n = np.arange(int(seconds * rate)) / rate
    phase_n = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * time_n)) / rate
    voice_n = np.zeros_like(time_n)
    for harmonic in range(1, 30):
        hertz = 120 * harmonic
        formants = np.exp(-(((hertz - 500) / 400) ** 2)) + 0.5 * np.exp(-(((hertz - 1500) / 300) ** 2))
        voice_n += formants * np.sin(harmonic * phase_n)
    voice_n *= 0.6 - 0.4 * np.cos(2 * np.pi * 4 * time_n)
    samples: NDArray[np.int16] = (0.5 * 32767 * voice_n / np.abs(voice_n).max()).astype(np.int16)
    return samples


def silence(seconds: float, rate: int = PCM_RATE) -> NDArray[np.int16]:
    return np.zeros(int(seconds * rate), np.int16)
