"""Access: clients with a key, and without keys everyone but the pages of other servers."""

import hmac
import socket
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from omni.serve.errors import HttpError
from omni.serve.server import Server


def check_key(server: Server, authorization: str) -> None:
    """authorization: the header, `Bearer KEY`. Raises HttpError without a key of the server's."""
    keys = server.options.api_keys
    if not keys:
        return
    scheme, _, given = authorization.strip().partition(" ")
    # Compares all keys, each in constant time, so that the time reveals nothing about a key.
    matches = [hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        problem = "has no valid key" if authorization else "is missing"
        headers = {"www-authenticate": "Bearer"}
        raise HttpError(401, "invalid_api_key", "Authorization", problem, "send Authorization: Bearer KEY", headers)


def check_origin(server: Server, headers: Mapping[str, str]) -> None:
    """Browsers send simple requests of any page to any server, and let any page open websockets to it. Without keys, only the
    server's own page may: GET alone is harmless, as no other page can read the answer. Raises HttpError.

    `Sec-Fetch-Site` is the browser's own judgement, also behind a proxy that gives another `Host` on. Browsers leave it out where
    the address is neither HTTPS nor the same machine, and some do for websockets: then `Origin` has to be the address, by a name
    that a stranger cannot point to this machine after a page of theirs was loaded from it.
    """
    if server.options.api_keys:
        return
    field, origin, site = "Sec-Fetch-Site", headers.get("origin"), headers.get("sec-fetch-site")
    own = site in ("none", "same-origin")
    if site is None:
        field = "Origin"
        own = origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        if own and origin is not None and not _trusted_name(origin, server.options.host):
            problem = "is a name that may be a stranger's"
            remedy = "open the page by the server's IP address, or over HTTPS"
            setting = "serve with --api-key, or behind a proxy with TLS"
            raise HttpError(403, "forbidden_origin", "Host", problem, remedy, operator_remedy=setting)
    if not own:
        problem, remedy = "is a page of another server", "use this server's own page, or a client that is not a browser"
        setting = "serve with --api-key, and have the page send the key"
        raise HttpError(403, "forbidden_origin", field, problem, remedy, operator_remedy=setting)


_UNREGISTERED = ("localhost", "local", "internal", "home.arpa")
"""Domains without public names on the internet."""


def _trusted_name(origin: str, listening: str) -> bool:
    """Whether no stranger can have their page at that origin and this server behind it. A server over HTTPS has its name in its
    certificate, an IP address cannot change its owner, and names without a dot are those of a local network."""
    parts = urlsplit(origin)
    name = (parts.hostname or "").rstrip(".")
    if parts.scheme == "https" or "." not in name or name in (listening.lower(), socket.gethostname().lower()):
        return True
    with suppress(ValueError):
        ip_address(name)
        return True
    return name.endswith(tuple(f".{domain}" for domain in _UNREGISTERED))
