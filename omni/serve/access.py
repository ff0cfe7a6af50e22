"""Who is served: clients with a key, and without keys everyone but the pages of other servers."""

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
    # All keys are compared, each in constant time: the time says nothing of any.
    matches = [hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        problem = "has no valid key" if authorization else "is missing"
        headers = {"www-authenticate": "Bearer"}
        raise HttpError(401, "invalid_api_key", "Authorization", problem, "send Authorization: Bearer KEY", headers)


def check_origin(server: Server, headers: Mapping[str, str]) -> None:
    """Browsers send simple requests of any page to any server, and let any page open websockets to it. Without keys, only the
    server's own page may: GET alone is harmless, as no other page can read what is answered. Raises HttpError.

    `Sec-Fetch-Site` is the browser's own judgement, also behind a proxy that gives another `Host` on. Browsers leave it out where
    the address is neither HTTPS nor the same machine, and some do for websockets: then `Origin` has to be the address.
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
