"""Downloads one medium over HTTP."""

import functools
import ssl
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from omni.errors import shortened
from omni.media.connect import CheckedBackend, Resolver
from omni.media.local import too_large
from omni.media.options import MediaOptions
from omni.media.url import check_url, failed

_REDIRECTS = (301, 302, 303, 307, 308)
# No compression, so that the counted bytes are the bytes in memory.
_HEADERS = ((b"User-Agent", b"omni"), (b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"), (b"Connection", b"close"))
_FAILURES = (
    *(httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, httpcore.TimeoutException),
    *(httpx.InvalidURL, ssl.SSLError, OSError, ValueError),
)


async def download(url: str, field: str, options: MediaOptions, resolver: Resolver) -> bytes:
    """The content of a GET of `url`. Redirects are followed, and checked as `url` is. Raises InputError, naming `field`. The caller
    sets a deadline."""
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
