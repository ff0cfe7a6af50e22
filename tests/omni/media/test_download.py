"""Downloads end: with the content, with an error that names the field, or because they were cancelled."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from omni.errors import InputError, OmniError, StageError
from omni.media import MediaDownloader, MediaOptions
from omni.media import http as media_http
from tests.omni.media.web import CERTIFICATE, OK, Page, Visit, Web, content, redirect, serve
from tests.support.echo_omni import run_program
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.thorough

CONTENT = bytes(range(256)) * 64
LIMIT = 20_000


def then(sent: bytes, go_on: Page) -> Page:
    """A page that begins with `sent`."""

    def page(visit: Visit) -> None:
        visit.send(sent)
        go_on(visit)

    return page


def dripping(data: bytes) -> Page:
    return lambda visit: visit.drip(data)


PAGES: dict[str, Page] = {
    "/file": content(CONTENT),
    "/chunked": lambda visit: visit.send(
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
    ),
    "/until-the-end": lambda visit: visit.send(OK + b"\r\n" + CONTENT),
    "/moved": redirect("/file"),
    "/moved-twice": redirect("moved"),
    "/silent": Visit.wait_for_end,
    "/drips-its-header": dripping(b"x"),
    "/drips-headers": then(OK, dripping(b"X-Again: 1\r\n")),
    "/drips-its-body": then(OK + b"\r\n", dripping(b"x")),
    "/goes-on": dripping(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "/ends-early": lambda visit: visit.send(OK + b"Content-Length: 99\r\n\r\nx"),
    "/says-it-is-huge": then(OK + b"Content-Length: 20001\r\n\r\n", Visit.wait_for_end),
    "/is-huge": lambda visit: visit.send(OK + b"\r\n" + bytes(LIMIT + 1)),
    "/packed": content(b"\x1f\x8b", b"Content-Encoding: gzip\r\n"),
    "/no-http": lambda visit: visit.send(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "/round": redirect("/round"),
    "/to-a-file": redirect("file:///etc/passwd"),
    "/to-nothing": redirect("http://127.0.0.1:99999/"),
    "/huge-header": lambda visit: visit.send(OK + b"X: " + b"x" * 2**20 + b"\r\n\r\n"),
}


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serve(PAGES) as served:
        yield served


def options(**settings: Any) -> MediaOptions:
    return MediaOptions(**{"max_audio_bytes": LIMIT, "max_image_bytes": LIMIT, "proxies": False, **settings})


def fetch(url: str, **settings: Any) -> bytes:
    downloads = MediaDownloader(options(**settings))
    try:
        return downloads.fetch(url, "here").result(PATIENCE_SECONDS)
    finally:
        downloads.close()


def slow_names(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[str]]:
    """ "slow.test" has no address until the event is set. Returns that, and the queries for it."""
    over, asked, system = threading.Event(), [], socket.getaddrinfo

    def look(host: str, *args: Any, **settings: Any) -> Any:
        if host != "slow.test":
            return system(host, *args, **settings)
        asked.append(host)
        over.wait(60)
        raise OSError("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return over, asked


def refused(url: str, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        fetch(url, **settings)
    assert caught.value.field == "here"
    assert len(str(caught.value)) < 700
    return str(caught.value)


@pytest.mark.parametrize("path", ["/file", "/chunked", "/until-the-end", "/moved", "/moved-twice"])
def test_a_url_gives_its_content(web: Web, path: str) -> None:
    assert fetch(web.url(path)) == CONTENT
    assert b"Accept-Encoding: identity\r\n" in web.heads[-1]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/missing", "HTTP status 404"),
        ("/ends-early", "could not download"),
        ("/says-it-is-huge", "is larger than"),
        ("/is-huge", "is larger than"),
        ("/packed", "the answer is encoded as gzip"),
        ("/no-http", "could not download"),
        ("/huge-header", "could not download"),
        ("/round", "more than 10 redirects"),
        ("/to-a-file", "only http and https"),
        ("/to-nothing", "no host"),
    ],
)
def test_a_url_that_gives_nothing_usable(web: Web, path: str, words: str) -> None:
    assert words in refused(web.url(path))


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:1/x", "http://", "https://[::1", "http://a b/", "http://127.0.0.1:99999/", "http:///x"),
        *("http:x", "http://user:secret@127.0.0.1/", "http://\ud800/", "http://127.0.0.1/\ud800"),
        *("http://127.0.0.1/\n", "http://" + "a" * 10**6, "http://127.0.0.1/" + "a" * 10**6),
        "http://[fe80::1%25eth0]/",
    ],
    ids=lambda url: ascii(url[:30]),
)
def test_a_url_that_leads_nowhere(url: str) -> None:
    assert "could not download" in refused(url)


@pytest.mark.parametrize(
    "path", ["/silent", "/drips-its-header", "/drips-headers", "/drips-its-body", "/goes-on", "/round"]
)
def test_one_deadline_over_header_and_body(web: Web, path: str) -> None:
    """Each of them would never end, in steps that are short enough."""
    assert "no end after 0.4 s" in refused(web.url(path), download_seconds=0.4, max_redirects=10**6)


def test_one_deadline_over_tls() -> None:
    """A host that accepts the connection and sends no data."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        assert "no end after 0.4 s" in refused(url, download_seconds=0.4)


def test_one_deadline_over_names(monkeypatch: pytest.MonkeyPatch) -> None:
    over, _ = slow_names(monkeypatch)
    assert "no end after 0.4 s" in refused("http://slow.test/", download_seconds=0.4)
    over.set()


def test_one_deadline_over_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog that is full: the system neither takes nor refuses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        held = [socket.socket() for _ in range(4)]
        for each in held:
            each.setblocking(False)
            each.connect_ex(address)
        assert "no end after 0.4 s" in refused(f"http://127.0.0.1:{address[1]}/", download_seconds=0.4)
        for each in held:
            each.close()


def test_slow_downloads_do_not_delay_others(web: Web) -> None:
    downloads = MediaDownloader(options(download_seconds=600.0))
    slow = [downloads.fetch(web.url("/drips-its-header"), "here") for _ in range(20)]
    assert downloads.fetch(web.url("/file"), "here").result(PATIENCE_SECONDS) == CONTENT
    assert not any(each.done() for each in slow)
    downloads.close()


def test_names_that_hang_leave_threads_free(monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
    """Threads that resolve names cannot be stopped, and there are at most as many of them as downloads at once."""
    over, asked = slow_names(monkeypatch)
    downloads = MediaDownloader(options(download_seconds=0.4, max_downloads=3))
    slow = [downloads.fetch("http://slow.test/", "here") for _ in range(9)]
    assert all("no end after" in str(each.exception(60)) for each in slow)
    assert len(asked) == 3
    over.set()
    last = downloads.fetch(web.url("/file"), "here")
    assert last.result(PATIENCE_SECONDS) == CONTENT
    downloads.close()


def test_at_most_max_downloads_run_at_once(web: Web) -> None:
    release = threading.Event()

    def held(visit: Visit) -> None:
        release.wait(60)
        content(b"x")(visit)

    with serve({"/held": held}) as other:
        downloads = MediaDownloader(options(max_downloads=2))
        waiting = [downloads.fetch(other.url("/held"), "here") for _ in range(6)]
        other.wait_for(2)
        release.set()
        assert [each.result(PATIENCE_SECONDS) for each in waiting] == [b"x"] * 6
        assert other.most == 2
        downloads.close()


def test_waiting_for_its_turn_is_not_counted(web: Web) -> None:
    """Each has its own deadline, whatever the time of those before it."""
    downloads = MediaDownloader(options(download_seconds=0.3, max_downloads=1))
    slow = [downloads.fetch(web.url("/silent"), "here") for _ in range(4)]
    assert downloads.fetch(web.url("/file"), "here").result(PATIENCE_SECONDS) == CONTENT
    assert all(each.done() for each in slow)
    downloads.close()


def test_cancelling_ends_the_connection() -> None:
    with serve({"/silent": Visit.wait_for_end}) as web:
        downloads = MediaDownloader(options(download_seconds=600.0))
        future = downloads.fetch(web.url("/silent"), "here")
        web.wait_for(1)
        assert future.cancel()
        assert web.left.acquire(timeout=PATIENCE_SECONDS)
        with pytest.raises(CancelledError):
            future.result()
        downloads.close()


def test_closing_ends_everything_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    over, _ = slow_names(monkeypatch)
    with serve({"/drip": dripping(b"x")}) as web:
        downloads = MediaDownloader(options(download_seconds=600.0, max_downloads=2))
        urls = [web.url("/drip"), "http://slow.test/", web.url("/drip")]
        futures = [downloads.fetch(url, "here") for url in urls]
        web.wait_for(1)
        downloads.close()
        # At once: the error is there, whatever the loop is busy with.
        assert all(isinstance(future.exception(0), StageError) for future in futures)
        assert web.left.acquire(timeout=PATIENCE_SECONDS)
        downloads.close()
        assert isinstance(downloads.fetch(web.url("/drip"), "here").exception(0), StageError)
    over.set()


def no_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """The machine has none left for threads of that name. Which were wanted."""
    wanted, start = [], threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name != name:
            return start(thread)
        wanted.append(name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return wanted


@pytest.mark.parametrize("name", ["omni-downloads", "omni-resolve"])
def test_a_download_without_a_thread_fails_and_later_ones_run(
    monkeypatch: pytest.MonkeyPatch, web: Web, name: str
) -> None:
    downloads = MediaDownloader(options(max_downloads=2, download_seconds=20))
    url = web.url("/file").replace("127.0.0.1", "localhost")
    try:
        with monkeypatch.context() as patch:
            wanted = no_threads(patch, name)
            for _ in range(3):
                with pytest.raises(StageError, match="can't start new thread"):
                    downloads.fetch(url, "here").result(60)
            assert wanted == [name] * 3
        assert downloads.fetch(url, "here").result(60) == CONTENT, "turns of those that failed are free again"
    finally:
        downloads.close()


def test_closing_before_anything_was_downloaded() -> None:
    before = threading.active_count()
    downloads = MediaDownloader(MediaOptions())
    downloads.close()
    assert threading.active_count() == before
    assert isinstance(downloads.fetch("http://127.0.0.1/", "here").exception(0), StageError)


def test_the_interpreter_ends_at_once() -> None:
    """In the middle of a download, of a question for a name, and without `close`."""
    done = run_program("""
import socket
from omni.media import MediaDownloader, MediaOptions
listener = socket.create_server(("127.0.0.1", 0))
system = socket.getaddrinfo
asked = threading.Event()
def look(host, *args, **settings):
    if host == "slow.test":
        asked.set()
        threading.Event().wait()
    return system(host, *args, **settings)
socket.getaddrinfo = look
downloads = MediaDownloader(MediaOptions(download_seconds=3600.0, proxies=False))
here = f"http://127.0.0.1:{listener.getsockname()[1]}/"
waiting = [downloads.fetch(url, "here") for url in (here, "http://slow.test")]
connection, _ = listener.accept()  # kept: without a reference it is closed, and ends the download
asked.wait()
assert not any(each.done() for each in waiting)
assert all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
print("over", flush=True)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_redirects_are_checked_as_the_url_was(web: Web) -> None:
    """A host that is allowed cannot send anybody to one that is not."""
    with serve({"/away": redirect(web.url("/file", "localhost"))}) as other:
        assert fetch(other.url("/away")) == CONTENT
        asked = len(web.heads)
        words = refused(other.url("/away"), allowed_domains=("127.0.0.1",))
        assert "is at localhost, and media are not downloaded from there" in words
        assert len(web.heads) == asked


def names(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Gives these addresses for "media.test", one answer after another. Returns the queries."""
    asked: list[str] = []

    def look(host: str, port: int, *args: Any, **settings: Any) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return asked


def connections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses that are connected to from now on; none answers."""
    connected: list[tuple[str, int]] = []

    async def connect(remote_host: str, remote_port: int, **settings: Any) -> None:
        connected.append((remote_host, remote_port))
        raise OSError("not in a test")

    monkeypatch.setattr("anyio.connect_tcp", connect)
    return connected


def test_private_addresses_are_refused_by_address(monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
    asked = len(web.heads)
    names(monkeypatch, ["127.0.0.1"])
    words = refused(web.url("/file", "media.test"), strict=True, allowed_domains=("media.test",))
    assert "is at media.test, which is not on the public internet" in words
    assert "frontend.media.private_addresses" in words
    assert len(web.heads) == asked
    allowed = {"strict": True, "allowed_domains": ("media.test",), "private_addresses": True}
    assert fetch(web.url("/file", "media.test"), **allowed) == CONTENT


def test_the_address_that_was_checked_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
    """A name that has a public address when it is checked, and a private one a moment later."""
    asked = names(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])
    connected = connections(monkeypatch)
    refused(web.url("/file", "media.test"), private_addresses=False)
    assert asked == ["media.test"]
    assert connected == [("93.184.216.34", web.port)]


def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
    """Private ones among them are not."""
    names(monkeypatch, ["127.1.2.3", "127.0.0.1"])
    assert fetch(web.url("/file", "media.test")) == CONTENT
    names(monkeypatch, ["10.0.0.1", "127.0.0.1", "93.184.216.34"])
    connected = connections(monkeypatch)
    refused(web.url("/file", "media.test"), private_addresses=False)
    assert connected == [("93.184.216.34", web.port)]


def test_certificates_are_verified_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    media_http.tls.cache_clear()
    try:
        with serve({"/file": content(CONTENT)}, tls=True) as web:
            assert "certificate verify failed" in refused(web.url("/file", "localhost"))
            assert web.heads == []
            trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
            monkeypatch.setattr(media_http, "tls", lambda: trusting)
            assert fetch(web.url("/file", "localhost")) == CONTENT
            assert "not valid for '127.0.0.1'" in refused(web.url("/file", "127.0.0.1"))
    finally:
        monkeypatch.undo()
        media_http.tls.cache_clear()


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve({"http://media.test/file": content(CONTENT), "/file": content(b"direct")}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url(""))
        assert fetch("http://media.test/file", proxies=None) == CONTENT
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert fetch(proxy.url("/file"), proxies=None) == b"direct"
        asked = len(proxy.heads)
        names(monkeypatch, [])
        for settings in ({"strict": True, "remote": True, "proxies": None}, {"proxies": False}):
            assert "has no address" in refused("http://media.test/file", **settings)
        assert len(proxy.heads) == asked


def test_only_errors_of_our_own_come_out(web: Web) -> None:
    """Whatever a server sends."""
    broken = [
        b"",
        b"\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 302 Found\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1, 2\r\n\r\n",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Encoding: \xff\r\n\r\n",
        OK + b"\xff: \xff\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    ]
    for number, sent in enumerate(broken):
        with serve({"/": lambda visit, sent=sent: visit.send(sent)}) as other:  # type: ignore[misc]
            try:
                assert fetch(other.url("/"), max_redirects=2, download_seconds=1.0) == b"", number
            except OmniError as error:
                assert isinstance(error, InputError), number  # noqa: PT017
