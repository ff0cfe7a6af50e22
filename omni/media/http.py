"""Downloads one medium over HTTP, from a host with a checked address."""

import asyncio
import functools
import socket
import ssl
import threading
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from omni.errors import InputError, as_omni_error, shortened
from omni.media.local import too_large
from omni.media.options import MediaOptions
from omni.media.url import check_url, failed

_INTERNET = ip_network("2000::/3")
"""All allocated addresses of IPv6. It excludes loopback, link-local, unique local, multicast, and IPv4 addresses: mapped
(::ffff:0:0/96) and translated (64:ff9b::/96, 64:ff9b:1::/48)."""

# IANA's registries of special-purpose addresses. The tables of `ipaddress` depend on the release of Python.
_SPECIAL = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared behind a carrier's NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; metadata of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address is in it
        "3fff::/20",  # documentation
    )
)

_Option = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class Resolver:
    """Host names to addresses, each in a daemon thread: `getaddrinfo` cannot be cancelled. most: such threads at once. Further
    requests wait for one to end, until their own deadline."""

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Addresses in the system's order, without link-local ones. Raises OSError, and StageError if no thread can be started."""
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[str]] = loop.create_future()

        def settle(found: list[str] | Exception) -> None:
            # Here and not in the waiting request, which may be cancelled while the thread still runs.
            self._slots.release()
            if done.cancelled():
                return
            if isinstance(found, Exception):
                done.set_exception(found)
            else:
                done.set_result(found)

        def run() -> None:
            found: list[str] | Exception
            try:
                listed = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(each[4][0]) for each in listed if "%" not in str(each[4][0])))
            except (OSError, ValueError) as error:
                found = error
            try:
                loop.call_soon_threadsafe(settle, found)
            except RuntimeError:
                # The loop is closed, so no request waits.
                return

        try:
            threading.Thread(target=run, name="omni-resolve", daemon=True).start()
        except RuntimeError as error:
            # The machine is out of threads, perhaps temporarily.
            self._slots.release()
            raise as_omni_error("frontend", "resolving a host", error) from error
        return await done


def is_public(address: str) -> bool:
    """Whether an IPv4 or IPv6 address is on the public internet. Raises ValueError for other texts."""
    found = ip_address(address)
    if found.version == 6 and found not in _INTERNET:
        return False
    return not any(found in special for special in _SPECIAL)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were checked: resolving the name a second time may give others. field: of the medium, for
    errors. private: whether addresses outside of the public internet are allowed."""

    def __init__(self, resolver: Resolver, field: str, *, private: bool) -> None:
        self._resolver = resolver
        self._field = field
        self._private = private
        self._network = httpcore.AnyIOBackend()
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[_Option] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises InputError if no address is allowed."""
        found = await self._resolver.resolve(host, port)
        allowed = [address for address in found if self._private or is_public(address)]
        if found and not allowed:
            problem = f"is at {shortened(host)}, which is not on the public internet"
            remedy = "use another host, or send the file itself as a data URI"
            raise InputError(self._field, problem, remedy, "set frontend.media.private_addresses")
        failure: Exception = OSError(f"{shortened(host)} has no address")
        # Each address gets a share of the time, so that an unresponsive address leaves time for the next.
        for tried, address in enumerate(allowed):
            left = len(allowed) - tried
            share = None if left == 1 or timeout is None else timeout / left
            try:
                opened = await self._network.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                self._opened.append(opened)
                return opened
        raise failure

    async def aclose(self) -> None:
        """Closes all connections. A request that is cancelled during the TLS handshake leaves its connection open."""
        for opened in self._opened:
            await opened.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_REDIRECTS = (301, 302, 303, 307, 308)
# No compression, so that the counted bytes are the bytes in memory.
_HEADERS = ((b"User-Agent", b"omni"), (b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"), (b"Connection", b"close"))
_FAILURES = (
    *(httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, httpcore.TimeoutException),
    *(httpx.InvalidURL, ssl.SSLError, OSError, ValueError),
)


async def download(url: str, field: str, options: MediaOptions, resolver: Resolver) -> bytes:
    """The content of a GET of `url`. Redirects are followed, and checked as `url` is. Raises InputError, naming `field`."""
    parts = check_url(url, field, options)
    for _ in range(options.max_redirects + 1):
        try:
            answer = await _get(parts, url, field, options, resolver)
        except TimeoutError:
            raise
        except _FAILURES as error:
            raise failed(url, field, shortened(str(error) or type(error).__name__)) from error
        if isinstance(answer, bytes):
            return answer
        parts = check_url(str(answer), field, options)
    reason = f"more than {options.max_redirects} redirects"
    raise failed(url, field, reason, "raise frontend.media.max_redirects")


async def _get(at: httpx.URL, url: str, field: str, options: MediaOptions, resolver: Resolver) -> bytes | httpx.URL:
    """The content at `at`, or the URL of a redirect. url: as given, for errors."""
    proxy = _proxy(at) if options.uses_proxies else None
    backend = CheckedBackend(resolver, field, private=options.allows_private or proxy is not None)
    target = httpcore.URL(scheme=at.raw_scheme, host=at.raw_host, port=at.port, target=at.raw_path)
    headers, limits = [(b"Host", at.netloc), *_HEADERS], {"timeout": {"connect": options.download_seconds}}
    asked = httpcore.Request("GET", target, headers=headers, extensions=limits)
    try:
        # For this request alone, so that no connection stays open.
        async with httpcore.AsyncConnectionPool(ssl_context=tls(), network_backend=backend, proxy=proxy) as connections:
            response = await connections.handle_async_request(asked)
            return await _content(response, at, url, field, options)
    finally:
        await backend.aclose()


async def _content(
    response: httpcore.Response, at: httpx.URL, url: str, field: str, options: MediaOptions
) -> bytes | httpx.URL:
    headers = httpx.Headers(response.headers)
    if response.status in _REDIRECTS and "location" in headers:
        return at.join(headers["location"])
    if not 200 <= response.status < 300:
        raise failed(url, field, f"HTTP status {response.status}")
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise failed(url, field, f"the answer is encoded as {shortened(encoding)}, which was not requested")
    if int(headers.get("content-length", "0")) > options.max_bytes:
        raise too_large(field, options.max_bytes)
    data = bytearray()
    async for block in response.aiter_stream():
        data += block
        if len(data) > options.max_bytes:
            raise too_large(field, options.max_bytes)
    return bytes(data)


def _proxy(at: httpx.URL) -> httpcore.Proxy | None:
    """The environment's proxy for that URL."""
    found = getproxies().get(at.scheme)
    if not found or proxy_bypass(at.host):
        return None
    parts = httpx.URL(found if "://" in found else f"http://{found}")
    login = (parts.username.encode(), parts.password.encode()) if parts.userinfo else None
    address = httpcore.URL(scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=b"/")
    return httpcore.Proxy(address, auth=login)


@functools.cache
def tls() -> ssl.SSLContext:
    """Verifies certificates by the system's authorities, and their host names."""
    return ssl.create_default_context()
