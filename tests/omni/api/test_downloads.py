"""Remote media: requests download first, by priority, and hold no thread meanwhile; other requests do not wait for a server."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from omni.api.request_queue import THREADS
from omni.errors import InputError, OverloadedError, StageError
from omni.media import MediaDownloader
from tests.omni.media.web import Page, Web, content, missing, serve
from tests.support.echo_family import eventually
from tests.support.echo_omni import opened, run_program

pytestmark = pytest.mark.thorough


@dataclass(frozen=True)
class Server:
    """Serves a picture at any path but `/none`, a large one below `/large`; below `/slow` not before `open` is set."""

    web: Web
    open: threading.Event

    @property
    def asked(self) -> list[str]:
        """The paths, in order."""
        return [head.split(b" ")[1].decode() for head in self.web.heads]

    def url(self, path: str) -> str:
        return self.web.url(f"/{path}")


def _png() -> bytes:
    data = BytesIO()
    Image.new("RGB", (5, 4)).save(data, "PNG")
    return data.getvalue()


PNG = _png()


@pytest.fixture
def server() -> Iterator[Server]:
    gate = threading.Event()

    def page_at(path: str) -> Page:
        page = missing if path == "/none" else content(PNG + bytes(10_000 if path.startswith("/large") else 0))
        return page if not path.startswith("/slow") else lambda visit: page(visit) if gate.wait(60) else None

    with serve(page_at) as web:
        yield Server(web, gate)
        gate.set()


def seen(*urls: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}]


def test_downloaded_media_are_read(model: Path, server: Server) -> None:
    with opened(model) as omni:
        urls = [server.url("a"), server.url("b"), server.url("a")]
        assert omni.generate(seen(*urls), stream=False).text == "<5x4>|<5x4>|<5x4>"
        assert sorted(server.asked) == ["/a", "/b"], "each once"
        with pytest.raises(InputError) as raised:
            omni.generate(seen(server.url("c"), server.url("none")), stream=False)
        assert raised.value.field.startswith("messages[0].content[1].image_url")
        assert eventually(lambda: omni.usage()["frontend"] == {"requests": 0, "bytes": 0})


def test_slow_servers_hold_no_thread(model: Path, server: Server) -> None:
    with opened(model) as omni:
        slow = omni.generate([seen(server.url(f"slow/{number}")) for number in range(4 * THREADS)])
        assert eventually(lambda: len(server.asked) == 4 * THREADS)
        assert omni.generate(seen(server.url("quick")), stream=False).text == "<5x4>"
        assert omni.generate("text", stream=False).text == "text"
        server.open.set()
        assert all(output.error is None for output in slow)


def test_downloads_are_begun_by_priority(model: Path, server: Server) -> None:
    with opened(model, **{"frontend.media.max_downloads": 1}) as omni:
        first = omni.generate(seen(server.url("slow/first")))
        assert eventually(lambda: len(server.asked) == 1)
        streams = [omni.generate(seen(server.url(f"{p}")), priority=p) for p in (2, 0, 1, -1)]
        assert eventually(lambda: omni.usage()["frontend"]["requests"] == 5)
        server.open.set()
        for stream in (first, *streams):
            list(stream)
        assert server.asked == ["/slow/first", "/-1", "/0", "/1", "/2"]


def test_an_urgent_request_waits_for_the_urls_under_way_alone(model: Path, server: Server) -> None:
    with opened(model, **{"frontend.media.max_downloads": 2}) as omni:
        many = omni.generate(seen(*(server.url(f"slow/{number}") for number in range(9))))
        assert eventually(lambda: len(server.asked) == 2)
        urgent = omni.generate(seen(server.url("urgent")), priority=-1)
        assert eventually(lambda: omni.usage()["frontend"]["requests"] == 2)
        server.open.set()
        assert "".join(output.text for output in urgent) == "<5x4>"
        assert "".join(output.text for output in many) == "|".join(["<5x4>"] * 9)
        assert server.asked.index("/urgent") <= 3
        assert sorted(server.asked) == sorted([*(f"/slow/{number}" for number in range(9)), "/urgent"])


def test_a_request_whose_downloads_alone_are_too_much_is_refused(model: Path, server: Server) -> None:
    most = 2000 + 5 * len(PNG)
    with opened(model, **{"engine.max_waiting_bytes": most, "frontend.media.max_downloads": 4}) as omni:
        few = omni.generate(seen(*(server.url(f"few/{number}") for number in range(2))), stream=False)
        assert few.text == "<5x4>|<5x4>"
        with pytest.raises(OverloadedError, match=f"the request alone holds .* above the {most} of all") as raised:
            omni.generate(seen(server.url("large"), server.url("slow")), stream=False)
        assert raised.value.field == "engine.max_waiting_bytes"
        assert eventually(lambda: omni.usage()["frontend"] == {"requests": 0, "bytes": 0})
        assert omni.generate(seen(server.url("next")), stream=False).text == "<5x4>"


def test_a_cancelled_request_cancels_its_download(model: Path, server: Server) -> None:
    with opened(model, **{"frontend.media.max_downloads": 1}) as omni:
        stream = omni.generate(seen(server.url("slow")))
        assert eventually(lambda: len(server.asked) == 1)
        stream.close()
        assert eventually(lambda: omni.usage()["frontend"] == {"requests": 0, "bytes": 0})
        assert omni.generate(seen(server.url("next")), stream=False).text == "<5x4>", "the only turn is free again"


def test_nothing_is_downloaded_for_a_request_that_is_wrong(model: Path, server: Server) -> None:
    wrong: Any = [*seen(server.url("a")), {"role": "user", "content": [{"type": "smell", "smell": 3}]}]
    with opened(model) as omni, pytest.raises(InputError, match="smell"):
        omni.generate(wrong, stream=False)
    assert server.asked == []


def test_nothing_is_downloaded_beside_a_medium_that_is_refused(model: Path, server: Server) -> None:
    strict = {"frontend.media.local": False}
    with opened(model, **strict) as omni, pytest.raises(InputError, match=r"local files|paths|not opened"):
        omni.generate(seen(server.url("a"), "file:///picture.png"), stream=False)
    assert server.asked == []


def test_close_waits_for_no_server(model: Path, server: Server) -> None:
    omni = opened(model)
    stream = omni.generate(seen(server.url("slow")))
    assert eventually(lambda: len(server.asked) == 1)
    began = time.monotonic()
    omni.close()
    assert time.monotonic() - began < 10, "a download may take 30 s"
    with pytest.raises(StageError, match="closed"):
        list(stream)


def test_a_close_begins_no_download_of_a_waiting_request(
    model: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, fetch = list[str](), MediaDownloader.fetch

    def recorded(downloads: MediaDownloader, url: str, field: str) -> "Future[bytes]":
        fetched.append(url)
        return fetch(downloads, url, field)

    monkeypatch.setattr(MediaDownloader, "fetch", recorded)
    omni = opened(model, **{"frontend.media.max_downloads": 1})
    streams = [omni.generate(seen(server.url(path))) for path in ("slow", "next", "last")]
    assert eventually(lambda: len(server.asked) == 1)
    omni.close()
    for stream in streams:
        with pytest.raises(StageError, match="closed"):
            list(stream)
    assert fetched == [server.url("slow")]


def test_downloads_that_hang_do_not_keep_the_interpreter(model: Path) -> None:
    """A server that never answers, and a library that has a thread for a minute; the model is not even closed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ran = run_program(f"""
from tests.support.echo_family import EchoFrontend, eventually
from tests.support.echo_omni import opened
real = EchoFrontend.prepare
taken = []
def prepare(self, chat):
    taken.append(chat)
    time.sleep(60)
    return real(self, chat)
EchoFrontend.prepare = prepare
omni = opened({str(model)!r})
url = "http://127.0.0.1:{silent.getsockname()[1]}/"
image = [{{"role": "user", "content": [{{"type": "image_url", "image_url": url}}]}}]
streams = [omni.generate(image), omni.generate("text")]
assert eventually(lambda: taken)
print(time.time(), flush=True)
""")
        ended = time.time()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ended - float(ran.stdout) < 20, "what hangs would have taken 30 or 60 s"
