"""One client's session: its events, one by one, and their effects."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from omni.errors import InputError, OmniError, OverloadedError, quoted
from omni.serve.disconnect import ClientGone
from omni.serve.errors import HttpError, reported
from omni.serve.realtime.backlog import Backlog
from omni.serve.realtime.channel import EventChannel
from omni.serve.realtime.client_events import (
    AnyClientEvent,
    AppendAudio,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    RetrieveItem,
    SessionUpdate,
    TruncateItem,
    WrongEvent,
    read_event,
)
from omni.serve.realtime.conversation import Conversation
from omni.serve.realtime.item_media import check_media
from omni.serve.realtime.items import Item, read_item
from omni.serve.realtime.memory import SessionMemory
from omni.serve.realtime.request import ResponseRequest, read_request
from omni.serve.realtime.response import Response
from omni.serve.realtime.server_events import (
    ErrorEvent,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    RealtimeError,
    SessionCreated,
    SessionUpdated,
)
from omni.serve.realtime.settings import Settings, described, updated
from omni.serve.realtime.transcriber import InputTranscriber
from omni.serve.realtime.turn_collector import TurnCollector
from omni.serve.server import Server

_RESTART = 1012
"""Code with which a websocket closes when the server ends: IANA's "Service Restart"."""
_LARGE = 2**18
"""Characters of an event that is decoded beside the event loop."""


class _ServerEnds(Exception):
    """The session ends with the server: work under way is complete, or its time is over."""


class RealtimeSession:
    """id: for the log. Everything is for the event loop's thread.

    Six tasks run: one reads events, and handles those that need not wait; one handles the others, in order; one writes; one
    transcribes the user's speech; one waits for the server's end; and one is the response's. When one fails, or the client goes,
    all end, which cancels the requests.
    """

    def __init__(
        self, server: Server, websocket: WebSocket, memory: SessionMemory, settings: Settings, session_id: str
    ) -> None:
        self.id = session_id
        self._server = server
        self._websocket = websocket
        self._settings = settings
        self._memory = memory
        self._channel = EventChannel(websocket, server.options.stalled_seconds)
        self._backlog = Backlog(memory, server.options.max_items)
        self._conversation = Conversation(memory, server.options.max_items)
        self._collector = TurnCollector(
            self._channel,
            self._conversation,
            memory,
            settings,
            # A model's front end would refuse a longer turn in every response.
            most_seconds=min(server.options.max_turn_seconds, server.omni.media.max_audio_seconds),
            on_speech=self._interrupt,
            on_item=self._transcribe,
            on_turn=self._answer,
        )
        self._transcriber = InputTranscriber(server, self._channel, self._conversation, memory, session_id)
        self._response: Response | None = None
        self._owed = False
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Runs until the client disconnects, or the server ends. Raises errors that the client did not cause."""
        self._channel.put(SessionCreated(session=described(self._settings)))
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._channel.run())
                self._tasks.create_task(self._read())
                self._tasks.create_task(self._work())
                self._tasks.create_task(self._transcriber.run())
                self._tasks.create_task(self._drain())
        except* ClientGone:
            pass
        except* _ServerEnds:
            with suppress(WebSocketDisconnect):
                await self._websocket.close(_RESTART, "the server ends")

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise ClientGone
            await self._reported(self._event(message.get("text")))
            # Events that have come already are received without waiting: others have their turn between two.
            await asyncio.sleep(0)

    async def _work(self) -> None:
        while True:
            async with self._backlog.next() as event:
                await self._reported(self._handled(event))

    async def _drain(self) -> None:
        """Waits for the server's end, and then for work under way. Raises _ServerEnds."""
        await self._server.drain.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._server.options.drain_seconds):
                if self._response is not None:
                    await self._response.finished.wait()
                await self._transcriber.finish()
                await self._channel.flush()
        raise _ServerEnds

    async def _reported(self, work: Awaitable[None]) -> None:
        """Sends the error of an event to the client."""
        try:
            await work
        except WrongEvent as wrong:
            self._refuse(wrong.error, wrong.event_id)
        except OmniError as error:
            self._refuse(error, None)
        except Exception as error:
            # A fault of the server: the client gets an error event before the session ends.
            self._refuse(error, None)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._channel.flush()
            raise
        await self._channel.wait()

    async def _event(self, text: str | None) -> None:
        if text is None:
            raise InputError("event", "is binary", "send JSON as text")
        event = read_event(text) if len(text) < _LARGE else await asyncio.to_thread(read_event, text)
        if self._backlog.passes(event):
            await self._handled(event)
            return
        try:
            self._backlog.put(event, len(text))
        except OmniError as error:
            raise WrongEvent(error, event.event_id) from error

    async def _handled(self, event: AnyClientEvent) -> None:
        try:
            await self._handle(event)
        except OmniError as error:
            raise WrongEvent(error, event.event_id) from error

    async def _handle(self, event: AnyClientEvent) -> None:
        match event:
            case AppendAudio():
                await self._collector.append(event.audio)
            case CommitAudio():
                self._collector.commit()
            case ClearAudio():
                self._collector.clear()
            case SessionUpdate():
                self._update(event)
            case CreateItem():
                await self._create_item(event)
            case RetrieveItem():
                await self._retrieve(event)
            case DeleteItem():
                self._conversation.delete(event.item_id)
                self._channel.put(ItemDeleted(item_id=event.item_id))
            case TruncateItem():
                await self._truncate(event)
            case CreateResponse():
                given = event.response or {}
                self._respond(read_request(self._server, self._settings, self._conversation, given))
            case CancelResponse():
                self._cancel(event)

    def _update(self, event: SessionUpdate) -> None:
        settings = updated(self._server, self._settings, event.session, "session")
        more = settings.bytes - self._settings.bytes
        self._memory.check(more, "session")
        self._collector.use(settings)
        self._memory.change(more)
        self._settings = settings
        self._channel.put(SessionUpdated(session=described(settings)))

    async def _create_item(self, event: CreateItem) -> None:
        most = self._server.options.max_session_bytes
        item = await asyncio.to_thread(read_item, event.item, self._settings.input_format, "item", most)
        self._conversation.check(item, event.previous_item_id)
        await check_media(self._server, item, "item")
        before = self._conversation.add(item, event.previous_item_id)
        self._channel.put(ItemAdded(item=item.described(), previous_item_id=before))
        self._channel.put(ItemDone(item=item.described(), previous_item_id=before))

    async def _retrieve(self, event: RetrieveItem) -> None:
        if not self._conversation.has(event.item_id):
            problem = f"{quoted(event.item_id)} is not an item of the conversation"
            raise HttpError(400, "item_retrieve_invalid_item_id", "item_id", problem, "use the id of one")
        item = self._conversation.get(event.item_id)
        self._channel.put(ItemRetrieved(item=await asyncio.to_thread(item.described, whole=True)))

    async def _truncate(self, event: TruncateItem) -> None:
        item = self._conversation.get(event.item_id)
        if self._response is not None and self._response.item is item:
            self._response.stop("client_cancelled")
            await self._response.finished.wait()
        bytes_before = item.bytes
        item.truncate(event.content_index, event.audio_end_ms)
        self._memory.change(item.bytes - bytes_before)
        self._channel.put(
            ItemTruncated(item_id=item.id, content_index=event.content_index, audio_end_ms=event.audio_end_ms)
        )

    def _cancel(self, event: CancelResponse) -> None:
        response = self._response
        if response is None or event.response_id not in (None, response.id):
            named = f" {quoted(event.response_id)}" if event.response_id is not None else ""
            problem = f"no response{named} is under way"
            raise HttpError(400, "response_cancel_not_active", "response_id", problem, "cancel earlier")
        response.stop("client_cancelled")

    def _respond(self, request: ResponseRequest) -> None:
        """Raises InputError while another response is under way, HttpError when the server ends."""
        if self._server.drain.begun:
            raise HttpError(503, "server_ends", "response", "the server ends", "connect again")
        if self._response is not None:
            code, problem = "conversation_already_has_active_response", "another one is under way"
            raise HttpError(400, code, "response", problem, "wait for response.done, or cancel it")
        assert self._tasks is not None
        self._memory.add(request.bytes, "response")
        self._response = Response(self._server, self._channel, self._conversation, self._memory, request, self.id)
        self._tasks.create_task(self._run(self._response, request.bytes))

    async def _run(self, response: Response, held: int) -> None:
        """held: bytes until its end."""
        try:
            await response.run()
        finally:
            self._memory.change(-held)
            self._response = None
            response.finished.set()
        if self._owed:
            self._answer()

    def _transcribe(self, item: Item) -> None:
        if self._settings.transcription is not None:
            self._transcriber.put(item.id, self._settings.transcription, self._settings.cache_salt)

    def _interrupt(self) -> None:
        """The user starts to speak."""
        if self._response is not None and self._response.kept:
            self._response.stop("turn_detected")

    def _answer(self) -> None:
        """The user's turn has ended: starts a response, after the one that is under way."""
        self._owed = self._response is not None
        if not self._owed and not self._server.drain.begun:
            try:
                self._respond(read_request(self._server, self._settings, self._conversation, {}))
            except (InputError, OverloadedError) as error:
                self._refuse(error, None)

    def _refuse(self, error: Exception, event_id: str | None) -> None:
        said = reported(error, self.id, self._server.options.retry_after_seconds).body.error
        self._channel.put(
            ErrorEvent(
                error=RealtimeError(
                    message=said.message, type=said.type, code=said.code, param=said.param, event_id=event_id
                )
            )
        )
