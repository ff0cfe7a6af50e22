"""A web server on 127.0.0.1 whose answers a test determines byte by byte."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Of "localhost", and its key; made for these tests, trusted by no system."""

OK = b"HTTP/1.1 200 OK\r\n"


class Visit:
    """One connection. head: the request's first line and headers, as received."""

    def __init__(self, connection: socket.socket, head: bytes, stopping: threading.Event) -> None:
        self._connection = connection
        self._stopping = stopping
        self.head = head

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def drip(self, data: bytes) -> None:
        """A byte at a time, again and again, until the client leaves or the test is over."""
        while True:
            for byte in data:
                self.pause()
                self.send(bytes([byte]))

    def pause(self, seconds: float = 0.02) -> None:
        if self._stopping.wait(seconds):
            raise OSError("the test is over")

    def wait_for_end(self) -> None:
        """Until the client leaves or the test is over."""
        self._connection.settimeout(60)
        self._connection.recv(1)


Page = Callable[[Visit], None]


def missing(visit: Visit) -> None:
    visit.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


class Web:
    """port: where. heads: of the requests, in order. most: connections that were open at once. left: counts those that ended."""

    def __init__(self, page_at: Callable[[str], Page], tls: bool) -> None:
        self.heads: list[bytes] = []
        self.most = 0
        self.left = threading.Semaphore(0)
        self._page_at = page_at
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def wait_for(self, visits: int) -> None:
        """Until so many were asked."""
        until = time.monotonic() + 60
        while len(self.heads) < visits:
            assert time.monotonic() < until, f"{len(self.heads)} of {visits} came"
            time.sleep(0.01)

    def close(self) -> None:
        self._stopping.set()
        # Wakes `accept`, which closing does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
                self.most = max(self.most, len(self._open))
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        spoken = connection
        # A client may close the connection early.
        with contextlib.suppress(OSError):
            if self._tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(CERTIFICATE)
                spoken = context.wrap_socket(connection, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head:
                block = spoken.recv(4096)
                if not block:
                    raise OSError("no request")
                head += block
            self.heads.append(head)
            self._page_at(head.split(b" ")[1].decode())(Visit(spoken, head, self._stopping))
        with self._lock:
            self._open.discard(connection)
        spoken.close()
        self.left.release()


@contextlib.contextmanager
def serve(pages: Mapping[str, Page] | Callable[[str], Page], *, tls: bool = False) -> Iterator[Web]:
    """pages: by what follows `GET`: a path, or for a proxy a URL."""
    web = Web(pages if callable(pages) else lambda path: pages.get(path, missing), tls)
    try:
        yield web
    finally:
        web.close()


def content(data: bytes, headers: bytes = b"") -> Page:
    """A page that is that."""
    length = b"Content-Length: %d\r\n" % len(data)
    return lambda visit: visit.send(OK + length + headers + b"\r\n" + data)


def redirect(to: str) -> Page:
    return lambda visit: visit.send(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
