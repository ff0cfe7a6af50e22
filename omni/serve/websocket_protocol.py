"""A websocket, as uvicorn speaks it, with limits to messages of many small frames."""

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from omni.serve.fair_reads import FairReads

MOST_FRAMES = 2**14
"""Maximum frames of one message: each takes memory, and empty ones do not add to the size of the message."""


class BoundedWebsocket(FairReads, WebSocketsSansIOProtocol):
    """Ends a connection whose message never ends, and keeps no answers to pings for a client that does not read. A client whose
    message is refused gets the reason, even if it still sends."""

    def data_received(self, data: bytes) -> None:
        WebSocketsSansIOProtocol.data_received(self, data)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # uvicorn would log an error for each client that is refused.
            self.handshake_complete = True

    def shutdown(self) -> None:
        """A session ends itself when its response is over (`Server.drain`)."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def handle_parser_exception(self) -> None:
        """As uvicorn, which closes the connection at once: a client that still sends would fail, and not read the reason. Instead,
        what it sends is dropped for `close_timeout` seconds."""
        if self.close_sent:
            return
        close = self.conn.close_sent
        assert close is not None
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_sent = True
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        if len(self.frames) >= MOST_FRAMES:
            self.frames = []
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {MOST_FRAMES:,} frames")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()
