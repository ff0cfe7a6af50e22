"""Access control: with keys, only clients with a key are served; without keys, all clients except pages of other servers."""

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from omni.serve.errors import HttpError
from omni.serve.server import Server


def check_key(server: Server, authorization: str) -> None:
    """authorization: the header, `Bearer KEY`. Raises HttpError without a key of the server's."""
    keys = server.options.api_keys
    if not keys:
        return
    scheme, _, given = authorization.strip().partition(" ")
    # Every key is compared in constant time, so response times reveal nothing about the keys.
    matches = [hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        problem = "has no valid key" if authorization else "is missing"
        headers = {"www-authenticate": "Bearer"}
        raise HttpError(401, "invalid_api_key", "Authorization", problem, "send Authorization: Bearer KEY", headers)


def check_origin(server: Server, headers: Mapping[str, str]) -> None:
    """Browsers let any page send simple requests and open websockets to any server. Without keys, only pages of this server may do
    so. GET is exempt: a page of another server cannot read the response. Raises HttpError.

    `Sec-Fetch-Site` is set by the browser, and is correct behind a proxy that changes `Host`. Browsers omit it for plain HTTP to
    another machine, and some omit it for websockets. In these cases `Origin` must match the address.
    """
    if server.options.api_keys:
        return
    field, origin, site = "Sec-Fetch-Site", headers.get("origin"), headers.get("sec-fetch-site")
    own = site in ("none", "same-origin")
    if site is None:
        field = "Origin"
        own = origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    if not own:
        problem, remedy = "is a page of another server", "use this server's own page, or a client that is no browser"
        setting = "serve with --api-key, and have the page send the key"
        raise HttpError(403, "forbidden_origin", field, problem, remedy, operator_remedy=setting)
