"""The page's files, as they are in the package: no build step, and no other host."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from omni.errors import quoted
from omni.serve.body import Call
from omni.serve.errors import HttpError
from omni.serve.server import Server

FOLDER = Path(__file__).parent / "static"
_START = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "worker-src 'self'",
        "style-src 'self'",
        # The user's own pictures are shown before they are sent.
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""A model's answers are shown as text: no part of them can become a script, a style or a request."""

_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers revalidate each time, so files of two versions never mix.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """headers: with the content type and the entity tag."""

    content: bytes
    headers: dict[str, str]


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return PageFile(content, {**_HEADERS, "content-type": _TYPES[path.suffix], "etag": tag})


FILES = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in _TYPES}
"""The page's files by name. A request selects one of them; its text never becomes part of a path."""


async def start(server: Server, call: Call) -> Response:
    return _response(FILES[_START], call)


async def file(server: Server, call: Call) -> Response:
    """Answers `GET /page/NAME`. Raises HttpError for a name without a file."""
    name = call.request.path_params["name"]
    if name not in FILES:
        raise HttpError(404, "not_found", "path", f"{quoted(name)} is not a file of the page", "open /")
    return _response(FILES[name], call)


def _response(file: PageFile, call: Call) -> Response:
    known = [tag.strip().removeprefix("W/") for tag in call.request.headers.get("if-none-match", "").split(",")]
    if file.headers["etag"] in known:
        return Response(None, 304, {name: value for name, value in file.headers.items() if name != "content-type"})
    return Response(file.content, 200, file.headers)
