import base64
import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from omni.errors import InputError
from omni.media.source import decode_base64, open_location

LIMIT = 100_000
CONTENT = bytes(range(256)) * 16


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path == "/huge-announced":
            self.send_header("Content-Length", str(LIMIT + 1))
        self.end_headers()
        # A client that has seen enough hangs up.
        with contextlib.suppress(OSError):
            self._send()

    def _send(self) -> None:
        if self.path == "/file":
            self.wfile.write(CONTENT)
        elif self.path == "/huge":
            self.wfile.write(bytes(LIMIT + 1))
        elif self.path == "/drip":
            # Each byte arrives in time, all of them never.
            while not self.server.stopping.wait(0.05):  # type: ignore[attr-defined]
                self.wfile.write(b"x")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.stopping = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.stopping.set()  # type: ignore[attr-defined]
        httpd.shutdown()
        thread.join()


def open_(source: str | Path, timeout_seconds: float = 5.0) -> Path | bytes:
    return open_location(source, field="here", max_bytes=LIMIT, timeout_seconds=timeout_seconds)


def test_a_path(tmp_path: Path) -> None:
    file = tmp_path / "a b%20c.bin"
    file.write_bytes(CONTENT)
    assert open_(file) == file
    assert open_(str(file)) == file
    assert open_(file.as_uri()) == file


def test_a_url(server: str) -> None:
    assert open_(f"{server}/file") == CONTENT


@pytest.mark.parametrize(
    "uri",
    [
        "data:audio/wav;base64," + base64.b64encode(CONTENT).decode(),
        "DATA:;base64," + base64.encodebytes(CONTENT).decode().replace("\n", "%0A"),
        "data:," + "".join(f"%{byte:02x}" for byte in CONTENT),
    ],
)
def test_a_data_uri(uri: str) -> None:
    assert open_(uri) == CONTENT


@pytest.mark.parametrize("text", ["nowhere.wav", "file:///no/where.wav", "a\0b", "", ".", "UklGR" * 2000])
def test_no_such_file(text: str) -> None:
    with pytest.raises(InputError, match="here: there is no file") as caught:
        open_(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("path", "message"),
    [("/missing", "404"), ("/huge", "larger than"), ("/huge-announced", "larger than"), ("/drip", "no end after")],
)
def test_a_url_that_gives_nothing_usable(server: str, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_(server + path, timeout_seconds=0.3)
    assert caught.value.field == "here"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://", "https://[::1", "http://a b/"])
def test_a_url_that_leads_nowhere(url: str) -> None:
    with pytest.raises(InputError, match="could not download"):
        open_(url)


@pytest.mark.parametrize("text", ["data:audio/wav;base64,@@@", "data:audio/wav;base64,AAA", "data:nothing"])
def test_a_broken_data_uri(text: str) -> None:
    with pytest.raises(InputError, match=r"base64|comma"):
        open_(text)


def test_size_limits(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(LIMIT + 1))
    encoded = base64.b64encode(bytes(LIMIT + 1)).decode()
    for attempt in (
        lambda: open_(file),
        lambda: open_(f"data:;base64,{encoded}"),
        lambda: decode_base64(encoded, field="here", max_bytes=LIMIT),
    ):
        with pytest.raises(InputError, match="larger than"):
            attempt()
