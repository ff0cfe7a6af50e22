"""HTTP/1.1 over a connection, as uvicorn speaks it, with a time limit for the head of a request, and with errors in OpenAI's shape
for invalid HTTP."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.http11 import Request
from websockets.server import ServerProtocol

from omni.serve.errors import HttpError, reported
from omni.serve.fair_reads import FairReads
from omni.serve.request_id import HEADER, new_request_id
from omni.serve.responses import error_response


class TimedProtocol(FairReads, H11Protocol):
    """Closes a connection whose next request does not begin in time: uvicorn itself waits for ever for the rest of a head."""

    head_seconds = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused = False
        """Whether further data is dropped."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        H11Protocol.data_received(self, data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """The response to a request that the parser rejects before it reaches the app."""
        request_id = new_request_id()
        error = HttpError(
            400, "invalid_http", "request", "cannot be read as HTTP/1.1", "correct it, or shorten its head"
        )
        response = error_response(reported(error, request_id, 0))
        # An answer under way cannot become another one.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [*response.raw_headers, (b"connection", b"close"), (HEADER.encode(), request_id.encode())]
            head = h11.Response(status_code=response.status_code, headers=headers)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self._answers() or self.conn.our_state is not h11.MUST_CLOSE:
            self.transport.close()
            return
        # A client that still sends would fail, and not read the response, if the connection were closed.
        self._refused = True
        self.transport.write_eof()
        self._watch()

    def _should_upgrade(self) -> bool:
        """The app refuses the handshakes that the websocket's parser would refuse. uvicorn answers some of it in another shape, and
        some of it, such as a line that is too long, never: the connection would stay for ever."""
        return super()._should_upgrade() and self._opens_websocket()

    def _opens_websocket(self) -> bool:
        query = self.scope["query_string"]
        target = self.scope["raw_path"] + (b"?" + query if query else b"")
        lines = [
            b"%s %s HTTP/1.1" % (self.scope["method"].encode(), target),
            *(b"%s: %s" % each for each in self.headers),
        ]
        trial = ServerProtocol(logger=self.logger)
        trial.receive_data(b"\r\n".join([*lines, b"", b""]))
        requests = trial.events_received()
        return any(isinstance(each, Request) and trial.accept(each).status_code == 101 for each in requests)

    def _watch(self) -> None:
        """The time of a head runs from its first byte on, or from the connection's beginning; later bytes do not prolong it."""
        if self._answers():
            self._unwatch()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _unwatch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _answers(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _give_up(self) -> None:
        self._head_timer = None
        # A websocket has a protocol of its own.
        if not self._answers() and self.transport.get_protocol() is self:
            self.transport.close()


def timed_protocol(seconds: float) -> type[TimedProtocol]:
    """Returns a class, as uvicorn expects. seconds: time limit for a head."""
    return type("TimedProtocol", (TimedProtocol,), {"head_seconds": seconds})
