"""One medium over HTTP."""

import functools
import ssl
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from omni.errors import InputError, shortened
from omni.media.connect import CheckedBackend, Resolver
from omni.media.options import MediaOptions
from omni.media.url import check_url, failed

_REDIRECTS = (301, 302, 303, 307, 308)
# Nothing is unpacked here, so that what is counted is what is held.
_HEADERS = ((b"User-Agent", b"omni"), (b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"), (b"Connection", b"close"))
_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpx.InvalidURL,
    ssl.SSLError,
    OSError,
    ValueError,
)


async def download(url: str, field: str, options: MediaOptions, resolver: Resolver) -> bytes:
    """What a GET of `url` gives, redirects followed and checked as `url` is. Raises InputError, naming `field`.

    Takes as long as the other side likes: a deadline is the caller's.
    """
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
    raise failed(url, field, f"more than {options.max_redirects} redirects, frontend.media.max_redirects")


async def _get(at: httpx.URL, url: str, field: str, options: MediaOptions, resolver: Resolver) -> bytes | httpx.URL:
    """The content at `at`, or where that is. url: as it was given, for errors."""
    host = at.raw_host.decode("ascii")
    target = httpcore.URL(scheme=at.raw_scheme, host=at.raw_host, port=at.port, target=at.raw_path)
    headers = [(b"Host", at.netloc), *_HEADERS]
    async with (
        _connections(at, host, field, options, resolver) as connections,
        connections.stream(
            "GET", target, headers=headers, extensions={"timeout": {"connect": options.download_seconds}}
        ) as response,
    ):
        received = httpx.Headers(response.headers)
        if response.status in _REDIRECTS and "location" in received:
            return at.join(received["location"])
        if not 200 <= response.status < 300:
            raise failed(url, field, f"HTTP status {response.status}")
        encoding = received.get("content-encoding", "identity")
        if encoding != "identity":
            raise failed(url, field, f"it came as {shortened(encoding)}, which was not asked for")
        if int(received.get("content-length", "0")) > options.max_bytes:
            raise _too_large(field, options)
        data = bytearray()
        async for block in response.aiter_stream():
            data += block
            if len(data) > options.max_bytes:
                raise _too_large(field, options)
        return bytes(data)


def _connections(
    at: httpx.URL, host: str, field: str, options: MediaOptions, resolver: Resolver
) -> httpcore.AsyncConnectionPool:
    """Of one request, so that none is left open."""
    proxy = getproxies().get(at.scheme) if options.uses_proxies and not proxy_bypass(host) else None
    if proxy is None:
        backend = CheckedBackend(resolver, field, private=options.allows_private)
        return httpcore.AsyncConnectionPool(ssl_context=_tls(), network_backend=backend)
    parts = httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
    login = (parts.username.encode(), parts.password.encode()) if parts.userinfo else None
    address = httpcore.URL(scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=b"/")
    backend = CheckedBackend(resolver, field, private=True)
    return httpcore.AsyncHTTPProxy(address, proxy_auth=login, ssl_context=_tls(), network_backend=backend)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Checks certificates by the system's authorities, and that they are of the host that was named."""
    return ssl.create_default_context()


def _too_large(field: str, options: MediaOptions) -> InputError:
    return InputError(field, f"is larger than {options.max_bytes / 2**20:g} MiB", "give a smaller file")
