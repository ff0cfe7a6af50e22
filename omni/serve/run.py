"""Serves an app with uvicorn, until SIGTERM or Ctrl-C."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from omni.api import AsyncOmni
from omni.errors import ConfigError, OmniError
from omni.serve.app import create_app
from omni.serve.lingering import Lingering
from omni.serve.options import ServeOptions
from omni.serve.protocol import timed_protocol
from omni.serve.server import Server
from omni.serve.websocket_protocol import BoundedWebsocket
from omni.utils.log import safe_logger

_log = safe_logger("omni.serve")

_BACKLOG = 2048


def bound(options: ServeOptions) -> socket.socket:
    """A socket at the address, which refuses connections until the app runs. Raises ConfigError if the address is not free."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # By the protocol asyncio knows that connections are TCP, and turns off Nagle's algorithm, which would hold every second piece
    # of an answer back until the client acknowledges the first, 40 ms later.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        problem = f"cannot listen at {options.host}:{options.port} ({error.strerror or error})"
        raise ConfigError(
            "--host, --port", problem, "choose another address, or end the program that uses it"
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class HttpServer(uvicorn.Server):
    """Stops taking connections at SIGTERM or SIGINT, or when the engine has failed, answers the requests under way, then closes the
    model. A second SIGINT does not wait for answers."""

    def __init__(self, omni: AsyncOmni, options: ServeOptions, listening: Callable[[], object] = lambda: None) -> None:
        """listening: called once connections are taken. Raises ConfigError."""
        app = create_app(omni, options)
        self._listening = listening
        self._server: Server = app.state.server
        self._stalled_seconds = options.stalled_seconds
        self._lingering: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=timed_protocol(options.body_seconds),
                ws=BoundedWebsocket,
                access_log=False,
                log_config=None,
                backlog=_BACKLOG,
                lifespan="on",
                server_header=False,
                ws_max_size=options.max_event_bytes,
                ws_ping_interval=options.ping_seconds,
                ws_ping_timeout=options.ping_seconds,
                # Most of the traffic is base64 of sound: packing it costs the event loop more than it saves.
                ws_per_message_deflate=False,
                timeout_graceful_shutdown=options.drain_seconds,
            )
        )

    def prepare(self) -> None:
        """Starts the services that the first request would wait for."""
        self._server.encoders.start()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._lingering = asyncio.create_task(Lingering(self._stalled_seconds).run(self.server_state.connections))
        self._listening()

    async def on_tick(self, counter: int) -> bool:
        """uvicorn polls this ten times a second. The lifespan has not closed the model yet."""
        failure = self._server.failure = self._server.omni.failure
        if failure is not None:
            _log.error("the engine has failed, and the server ends: %s", failure)
        return failure is not None or await super().on_tick(counter)

    @property
    def failure(self) -> OmniError | None:
        """Failure of the engine before it was closed: it ended the server, or occurred while the server drained."""
        return self._server.failure

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for answers, but not for activity streams, which never end."""
        self._server.activity.end()
        self._server.drain.begin()
        try:
            await super().shutdown(sockets)
        finally:
            if self._lingering is not None:
                self._lingering.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's handler raises the signal again at the end, and the exit code would not show that all requests were
        answered."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(omni: AsyncOmni, options: ServeOptions, listener: socket.socket, listening: Callable[[], object]) -> None:
    """Answers until a signal comes, and closes the model. listening: called once connections are taken. Raises ConfigError, before
    that, for options that the model refuses, and at the end the failure of an engine that is not started again."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        server = HttpServer(omni, options, listening)
    except ConfigError:
        asyncio.run(omni.close())
        raise
    server.prepare()
    server.run([listener])
    if server.failure is not None:
        raise server.failure
