"""The page's files: their headers, and no reference to another server."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni.serve.page.files import CONTENT_SECURITY_POLICY, FILES, FOLDER
from tests.omni.serve.http_server import Served, echo_omni, served

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
IMPORT = re.compile(r"""\bfrom "\./([\w-]+\.js)";|addModule\("/page/([\w-]+\.js)"\)""")
OURS = re.compile(r'(?:src|href)="/page/([^"]+)"')
OUTSIDE = re.compile(r"""(?:\b(?:https?|wss?)://|["'(=]//)[^\s"')]*""")
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.fixture(scope="module")
def keyed(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder), api_keys=("secret",)) as it:
        yield it


def test_the_page_needs_no_key_and_what_it_asks_for_does(keyed: Served) -> None:
    page = keyed.get("/")
    assert page.status_code == 200
    assert page.text.startswith("<!doctype html>")
    assert keyed.get("/page/main.js").status_code == 200
    for path in ("/v1/omni/pipeline", "/v1/omni/activity"):
        assert keyed.get(path).status_code == 401


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_file_has_its_type_and_the_policy(echo: Served, name: str) -> None:
    response = echo.get(f"/page/{name}")
    assert response.content == (FOLDER / name).read_bytes()
    assert response.headers["content-type"].partition(";")[0] == TYPES[Path(name).suffix]
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert response.headers["x-content-type-options"] == "nosniff"


def test_every_file_of_the_folder_is_served() -> None:
    assert set(FILES) == {path.name for path in FOLDER.iterdir()}


def test_the_policy_allows_this_server_alone() -> None:
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("img-src") == "'self' blob:"
    assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert {rules[name] for name in ("script-src", "style-src", "connect-src", "worker-src")} == {"'self'"}


def test_a_known_file_is_not_sent_again(echo: Served) -> None:
    first = echo.get("/page/style.css")
    assert first.headers["cache-control"] == "no-cache"
    again = echo.get("/page/style.css", **{"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert echo.get("/page/style.css", **{"if-none-match": '"other"'}).content == first.content


@pytest.mark.parametrize("name", ["none.js", "../files.py", "..%2Ffiles.py", "%2Fetc%2Fpasswd", "", "a/b"])
def test_no_other_file_is_served(echo: Served, name: str) -> None:
    response = echo.get(f"/page/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_names_no_other_host(name: str) -> None:
    text = (FOLDER / name).read_text().replace(NAMESPACE, "")
    assert not OUTSIDE.findall(text)
    # Violations of the policy that browsers only report.
    assert not re.search(r"<style|<script(?! type=\"module\" src=)|\son\w+=\"|\sstyle=\"|innerHTML|\beval\(", text)


def test_an_address_of_another_host_is_found() -> None:
    for text in ('src="//cdn.example/x.js"', "fetch('https://example.com')", "url(//x)", 'new WebSocket("ws://x")'):
        assert OUTSIDE.search(text)


def test_files_refer_to_files_that_are_there_and_none_is_unused() -> None:
    texts = [(FOLDER / name).read_text() for name in FILES]
    used = {name for text in texts for pair in IMPORT.findall(text) for name in pair if name}
    used |= {name for text in texts for name in OURS.findall(text)}
    assert used | {"index.html"} == set(FILES)


def test_the_pipeline_determines_the_pages_offers(echo: Served) -> None:
    assert echo.get("/v1/omni/pipeline").json() == {
        "model": "tiny",
        "family": "echo",
        "modalities": ["text", "audio"],
        "voices": ["low", "high"],
        "takes_media": True,
        "stages": [{"name": "writer", "kind": "echo"}, {"name": "singer", "kind": "tone"}],
        "edges": [{"producer": "writer", "consumer": "singer"}],
    }
