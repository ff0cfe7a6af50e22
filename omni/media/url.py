"""URLs of media, and the check of allowed ones."""

import httpx

from omni.errors import InputError, shortened
from omni.media.options import MediaOptions

_SCHEMES = ("http", "https")


def is_remote(source: object) -> bool:
    """Whether a medium is given as an http(s) URL."""
    return isinstance(source, str) and source[:8].lower().partition(":")[0] in _SCHEMES


def check_url(url: str, field: str, options: MediaOptions) -> httpx.URL:
    """The parts of an http(s) URL. Raises InputError if its text is forbidden."""
    if not options.allows_remote:
        problem, remedy = "is a URL, and media are not downloaded here", "send the file itself as a data URI"
        raise InputError(field, problem, remedy, "set frontend.media.remote")
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise failed(url, field, shortened(str(error))) from error
    host, port = parts.raw_host.decode("ascii"), parts.port
    if parts.scheme not in _SCHEMES or parts.userinfo:
        raise failed(url, field, "only http and https, without a user's name")
    if not host or "%" in host or (port is not None and not 0 < port < 2**16):
        raise failed(url, field, "no host")
    # `".example.com"` includes its subdomains.
    name, domains = _ascii(host), [_ascii(domain) for domain in options.allowed_domains or ()]
    allowed = (name == one.lstrip(".") or (one.startswith(".") and name.endswith(one)) for one in domains)
    if options.allowed_domains is not None and not any(allowed):
        problem = f"is at {shortened(host)}, and media are not downloaded from there"
        remedy = "use another host, or send the file itself as a data URI"
        raise InputError(field, problem, remedy, "add it to frontend.media.allowed_domains")
    return parts


def failed(url: str, field: str, reason: str, operator_remedy: str = "") -> InputError:
    """reason: at most as long as a quotation in an error."""
    problem = f"could not download {shortened(url)} ({reason})"
    return InputError(field, problem, "check the URL, or send the file itself as a data URI", operator_remedy)


def _ascii(domain: str) -> str:
    """As encoded in URLs."""
    dot = "." if domain.startswith(".") else ""
    name = domain.strip(".").lower()
    return dot + (name if name.isascii() else httpx.URL(f"http://{name}").raw_host.decode("ascii"))
