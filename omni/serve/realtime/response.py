"""One response: the model's outputs as events."""

import asyncio
import base64

from omni.api import GenerateArguments, Output
from omni.serve.disconnect import ClientGone
from omni.serve.errors import reported
from omni.serve.realtime.channel import EventChannel
from omni.serve.realtime.conversation import ROOT, Conversation, prompt
from omni.serve.realtime.formats import FormatEncoder
from omni.serve.realtime.ids import new_id
from omni.serve.realtime.items import Item, ItemPart
from omni.serve.realtime.memory import SessionMemory
from omni.serve.realtime.prompt_attempts import PromptAttempts
from omni.serve.realtime.request import ResponseRequest
from omni.serve.realtime.server_events import (
    AudioDelta,
    AudioDone,
    ContentPart,
    InputTokens,
    ItemAdded,
    ItemDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTokens,
    PartAdded,
    PartDone,
    ResponseCreated,
    ResponseDone,
    ResponseObject,
    ResponseUsage,
    StatusDetails,
    StatusError,
    TextDelta,
    TextDone,
    TranscriptDelta,
    TranscriptDone,
)
from omni.serve.realtime.settings import arguments, described_output
from omni.serve.realtime.truncation import PromptBound, RetentionRatio, input_limit, prompt_bound
from omni.serve.server import Server
from omni.serve.usage import finish_reason, token_usage


class Response:
    """Runs once. item: its content; in the conversation from the first output on, if it is kept. finished:
    set by the caller of `run` after it."""

    def __init__(
        self,
        server: Server,
        channel: EventChannel,
        conversation: Conversation,
        memory: SessionMemory,
        request: ResponseRequest,
        session_id: str,
    ) -> None:
        self.id = new_id("resp")
        self.item = Item("assistant", status="in_progress")
        self.finished = asyncio.Event()
        self._server = server
        self._channel = channel
        self._conversation = conversation
        self._memory = memory
        self._request = request
        self._session_id = session_id
        self._speaks = "audio" in request.settings.modalities
        self._part = ItemPart("output_audio" if self._speaks else "output_text")
        self._after = conversation.last_id or ROOT
        self._speech: FormatEncoder | None = None
        self._begun = False
        self._generating = False
        self._stop_reason: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._status = "in_progress"
        self._details: StatusDetails | None = None
        self._usage: ResponseUsage | None = None
        self._prompt_tokens = self._text_tokens = 0

    @property
    def kept(self) -> bool:
        return self._request.kept

    def stop(self, reason: str) -> None:
        """Cancels the request; `run` ends with status "cancelled". A no-op once the model has ended. reason: OpenAI's."""
        self._stop_reason = self._stop_reason or reason
        if self._generating and self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Runs the response to its end. Raises ClientGone."""
        self._task = asyncio.current_task()
        self._channel.put(ResponseCreated(response=self._described()))
        try:
            await self._generate()
        except asyncio.CancelledError:
            if self._stop_reason is None or self._task is None:
                raise
            self._task.uncancel()
            self._end("cancelled", StatusDetails(type="cancelled", reason=self._stop_reason))
        except ClientGone:
            raise
        except Exception as error:
            said = reported(error, self._session_id, self._server.options.retry_after_seconds).body.error
            status = StatusError(message=said.message, type=said.type, code=said.code)
            self._end("failed", StatusDetails(type="failed", error=status))
        self._finish()

    async def _generate(self) -> None:
        if self._stop_reason is not None:
            raise asyncio.CancelledError
        self._generating = True
        try:
            made = arguments(self._server, self._request.settings)
            bound = await self._bound(made)
            attempts = PromptAttempts(self._request.settings.instructions, self._request.items, bound)
            made["max_prompt_tokens"] = attempts.most
            async with self._server.generate(
                "realtime", attempts.messages, attempts.rename, shorter=attempts.shorter, **made
            ) as outputs:
                async for output in outputs:
                    self._conversation.leave_out(attempts.left_out)
                    await self._take(output)
        finally:
            self._generating = False

    async def _bound(self, made: GenerateArguments) -> PromptBound | None:
        settings = self._request.settings
        limit = input_limit(self._server, settings.max_output_tokens)
        counted = 0
        if isinstance(settings.truncation, RetentionRatio):
            # Chat templates may refuse instructions alone.
            messages, _ = prompt(settings.instructions, [Item("user", [ItemPart("input_text", "x")])])
            counted = await self._server.prompt_tokens("realtime", messages, **made)
        return prompt_bound(settings.truncation, limit, counted)

    async def _take(self, output: Output) -> None:
        self._prompt_tokens = output.prompt_tokens
        self._text_tokens += len(output.tokens)
        if not self._begun:
            self._begin()
        if output.text:
            self._text(output.text)
        if output.audio is not None and output.sample_rate is not None and self._speaks:
            if self._speech is None:
                self._speech = FormatEncoder(self._request.settings.output_format, output.sample_rate)
            self._sound(self._speech.push(output.audio.numpy()))
        if output.finished:
            if self._speech is not None:
                self._sound(self._speech.finish())
            self._completed(output)
        await self._channel.wait()

    def _begin(self) -> None:
        """Raises InputError if the conversation is full."""
        before = None
        if self.kept:
            after = self._after if self._after == ROOT or self._conversation.has(self._after) else None
            before = self._conversation.add(self.item, after)
        self._begun = True
        self._channel.put(OutputItemAdded(response_id=self.id, item=self.item.described()))
        if self.kept:
            self._channel.put(ItemAdded(item=self.item.described(), previous_item_id=before))
        self.item.parts.append(self._part)
        self._channel.put(PartAdded(response_id=self.id, item_id=self.item.id, part=self._part_described()))

    def _text(self, text: str) -> None:
        self._part.text += text
        if self.kept and self._conversation.has(self.item.id):
            self._memory.change(len(text))
        kind = TranscriptDelta if self._speaks else TextDelta
        self._channel.put(kind(response_id=self.id, item_id=self.item.id, delta=text))

    def _sound(self, data: bytes) -> None:
        if data:
            delta = base64.b64encode(data).decode()
            self._channel.put(AudioDelta(response_id=self.id, item_id=self.item.id, delta=delta))
        if self._speech is not None:
            self._part.ms = self._speech.ms

    def _completed(self, output: Output) -> None:
        pipeline = self._server.omni.pipeline
        if output.usage is not None:
            usage = token_usage([output], pipeline)
            self._usage = ResponseUsage(
                total_tokens=usage.total_tokens,
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                input_token_details=InputTokens(cached_tokens=usage.prompt_tokens_details.cached_tokens),
                output_token_details=OutputTokens(
                    text_tokens=usage.completion_tokens_details.text_tokens,
                    audio_tokens=usage.completion_tokens_details.audio_tokens,
                ),
            )
        if finish_reason(output.finish_reasons, pipeline.main_stage) == "length":
            self._end("incomplete", StatusDetails(type="incomplete", reason="max_output_tokens"))
        else:
            self._end("completed", None)

    def _end(self, status: str, details: StatusDetails | None) -> None:
        self._status, self._details = status, details
        self.item.status = "completed" if status == "completed" else "incomplete"
        if self._usage is None:
            # It was ended: stages count the tokens of speech, and those found in the cache, at their own end.
            read, written = self._prompt_tokens, self._text_tokens
            self._usage = ResponseUsage(
                total_tokens=read + written,
                input_tokens=read,
                output_tokens=written,
                input_token_details=InputTokens(cached_tokens=0),
                output_token_details=OutputTokens(text_tokens=written, audio_tokens=0),
            )

    def _finish(self) -> None:
        if self._begun:
            own, item = self.id, self.item.id
            if self._speaks:
                self._channel.put(AudioDone(response_id=own, item_id=item))
                self._channel.put(TranscriptDone(response_id=own, item_id=item, transcript=self._part.text))
            else:
                self._channel.put(TextDone(response_id=own, item_id=item, text=self._part.text))
            self._channel.put(PartDone(response_id=own, item_id=item, part=self._part_described()))
            self._channel.put(OutputItemDone(response_id=own, item=self.item.described()))
            if self.kept and self._conversation.has(item):
                before = self._conversation.before(item)
                self._channel.put(ItemDone(item=self.item.described(), previous_item_id=before))
        self._channel.put(ResponseDone(response=self._described()))

    def _part_described(self) -> ContentPart:
        if self._speaks:
            return ContentPart(type="audio", transcript=self._part.text)
        return ContentPart(type="text", text=self._part.text)

    def _described(self) -> ResponseObject:
        settings = self._request.settings
        return ResponseObject(
            id=self.id,
            status=self._status,
            status_details=self._details,
            output=[self.item.described()] if self._begun and self._status != "in_progress" else [],
            conversation_id=self._conversation.id if self.kept else None,
            output_modalities=list(settings.modalities),
            max_output_tokens=settings.max_output_tokens or "inf",
            audio={"output": described_output(settings)},
            metadata=self._request.metadata,
            usage=self._usage,
        )
