"""Transcripts of the user's speech, for clients that show them."""

import asyncio
from dataclasses import dataclass

from omni.api import GenerateArguments, Usage
from omni.serve.audio.transcription import GREEDY, TranscriptionUsage, transcribing_messages
from omni.serve.disconnect import ClientGone
from omni.serve.errors import reported
from omni.serve.realtime.channel import EventChannel
from omni.serve.realtime.conversation import Conversation
from omni.serve.realtime.items import Item
from omni.serve.realtime.memory import SessionMemory
from omni.serve.realtime.server_events import (
    TranscriptionCompleted,
    TranscriptionError,
    TranscriptionFailed,
    TranscriptionPiece,
)
from omni.serve.realtime.settings import InputTranscription
from omni.serve.sampling import stage_sampling
from omni.serve.server import Server


@dataclass(frozen=True, slots=True)
class _PendingTranscription:
    """item_id: the item's sound may have been deleted by then."""

    item_id: str
    options: InputTranscription
    cache_salt: str


class InputTranscriber:
    """One turn at a time, beside the responses: each is a request of its own to the model."""

    def __init__(
        self,
        server: Server,
        channel: EventChannel,
        conversation: Conversation,
        memory: SessionMemory,
        session_id: str,
    ) -> None:
        self._server = server
        self._channel = channel
        self._conversation = conversation
        self._memory = memory
        self._session_id = session_id
        self._pending: asyncio.Queue[_PendingTranscription] = asyncio.Queue()

    def put(self, item_id: str, options: InputTranscription, cache_salt: str) -> None:
        """item_id: of a message of the user whose one part is sound."""
        self._pending.put_nowait(_PendingTranscription(item_id, options, cache_salt))

    async def finish(self) -> None:
        """Returns when everything that was put has been transcribed."""
        await self._pending.join()

    async def run(self) -> None:
        """Until it is cancelled. Raises ClientGone."""
        while True:
            pending = await self._pending.get()
            if self._conversation.has(pending.item_id):
                await self._try(pending)
            self._pending.task_done()

    async def _try(self, pending: _PendingTranscription) -> None:
        """Raises ClientGone; other errors are sent to the client."""
        try:
            await self._transcribe(self._conversation.get(pending.item_id), pending)
        except ClientGone:
            raise
        except Exception as error:
            said = reported(error, self._session_id, self._server.options.retry_after_seconds).body.error
            failure = TranscriptionError(message=said.message, type=said.type, code=said.code, param=said.param)
            self._channel.put(TranscriptionFailed(item_id=pending.item_id, error=failure))

    async def _transcribe(self, item: Item, pending: _PendingTranscription) -> None:
        part, omni = item.parts[0], self._server.omni
        assert part.sound is not None
        assert part.format is not None
        sound = part.sound, part.format.rate
        messages = transcribing_messages(sound, pending.options.language or "", pending.options.prompt or "")
        arguments = GenerateArguments(
            modalities=("text",),
            sampling=stage_sampling(omni, {"temperature": GREEDY}, {}),
            cache_salt=pending.cache_salt,
        )
        text, usage = "", Usage(0, {})
        async with self._server.generate(
            "transcription", messages, lambda field: f"item {item.id}", **arguments
        ) as outputs:
            async for output in outputs:
                usage = output.usage or usage
                if output.text:
                    text += output.text
                    self._channel.put(TranscriptionPiece(item_id=item.id, delta=output.text))
                    await self._channel.wait()
        if self._conversation.has(item.id):
            part.text = text
            self._memory.change(len(text))
        read, written = usage.prompt_tokens, usage.tokens.get(omni.pipeline.text_stage or "", 0)
        counts = TranscriptionUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        self._channel.put(TranscriptionCompleted(item_id=item.id, transcript=text, usage=counts))
