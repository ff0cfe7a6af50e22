"""Allowed sources of media, and the opening of a source."""

import base64
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile
from PIL import Image

from omni.api.settings import layers_of
from omni.errors import ConfigError, InputError
from omni.frontend.options import frontend_options
from omni.media import MediaOptions, check_audio, check_image, load_audio, load_image
from omni.media.http import is_public
from omni.media.source import decode_base64, open_location
from omni.media.url import check_url
from tests.support.entry_points import REPOSITORY

URL = "https://media.example.com/a.png"
STRICT = MediaOptions(strict=True)


@pytest.mark.parametrize(
    ("settings", "remote", "private", "proxies", "local"),
    [
        ({}, True, True, True, True),
        ({"strict": True}, False, False, False, False),
        ({"strict": True, "allowed_domains": ("a.com",)}, True, False, False, False),
        ({"strict": True, "allowed_domains": ()}, True, False, False, False),
        ({"strict": True, "local_folder": "/media"}, False, False, False, True),
        ({"strict": True, "remote": True, "private_addresses": True}, True, True, False, False),
        ({"strict": True, "proxies": True, "local": True}, False, False, True, True),
        ({"strict": True, "allowed_domains": ("a.com",), "remote": False}, False, False, False, False),
        ({"strict": True, "local_folder": "/media", "local": False}, False, False, False, False),
        ({"remote": False, "local": False, "private_addresses": False, "proxies": False}, False, False, False, False),
    ],
)
def test_unset_permissions_follow_strict(
    settings: dict[str, Any], remote: bool, private: bool, proxies: bool, local: bool
) -> None:
    made = MediaOptions(**settings)
    found = (made.allows_remote, made.allows_private, made.uses_proxies, made.allows_local)
    assert found == (remote, private, proxies, local)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("download_seconds", 0, "download_seconds must be greater than 0"),
        ("max_downloads", 0, "max_downloads must be greater than 0"),
        ("max_redirects", -1, "max_redirects must be at least 0"),
        ("max_image_pixels", 2**30, "max_image_pixels must be at most 178956970"),
        ("allowed_domains", ["https://a.com/"], "allowed_domains must be names such as example.com"),
        ("allowed_domains", ["*.a.com"], "allowed_domains must be names such as example.com"),
        ("allowed_domains", [""], "allowed_domains must be names such as example.com"),
        ("allowed_domains", "a.com", "does not fit"),
        ("strict", "perhaps", "does not fit"),
        ("strickt", True, "there is no option 'strickt'"),
    ],
)
def test_settings_that_cannot_be(path: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        frontend_options(layers_of(overrides={f"frontend.media.{path}": value}))
    assert caught.value.field == f"frontend.media.{path}"
    assert words in str(caught.value)


def test_every_setting_is_documented_with_its_default() -> None:
    text = (REPOSITORY / "docs" / "configuration.md").read_text().partition("## Media")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])]
    assert named == list(MediaOptions.__struct_fields__)
    for name in ("download_seconds", "max_downloads", "max_audio_seconds", "max_audio_samples", "max_image_pixels"):
        (row,) = (row for row in rows if f"`{name}`" in row.split("|")[1])
        assert float(row.split("|")[2].replace(",", "")) == msgspec.structs.asdict(MediaOptions())[name]


@pytest.mark.parametrize(
    ("host", "domain", "allowed"),
    [
        ("example.com", "example.com", True),
        ("EXAMPLE.com.", "example.COM", True),
        ("www.example.com", "example.com", False),
        ("www.example.com", ".example.com", True),
        ("a.b.example.com", ".example.com", True),
        ("example.com", ".example.com", True),
        ("badexample.com", ".example.com", False),
        ("example.com.evil.org", ".example.com", False),
        ("example.com@evil.org", "example.com", False),
        ("m\u00fcnchen.de", "m\u00fcnchen.de", True),
        ("xn--mnchen-3ya.de", ".m\u00fcnchen.de", True),
        ("93.184.216.34", "93.184.216.34", True),
        ("93.184.216.35", "93.184.216.34", False),
    ],
)
def test_allowed_domains_are_matched_whole(host: str, domain: str, allowed: bool) -> None:
    with nullcontext() if allowed else pytest.raises(InputError, match=r"^here: "):
        check_url(f"http://{host}:8080/a", "here", MediaOptions(allowed_domains=(domain,)))


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "223.255.255.255", "2606:2800:220:1::1", "2a00:1450::1"],
)
def test_public_addresses_are_recognized(address: str) -> None:
    assert is_public(address)


SPECIAL = """
0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255
192.0.0.170 192.0.2.1 192.168.1.1 198.18.0.1 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1
255.255.255.255 :: ::1 ::ffff:127.0.0.1 ::ffff:1.1.1.1 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1
100::1 2001::1 2001:db8::1 2002:7f00:1::1 3fff::1 fc00::1 fd12:3456::1 fe80::1 fec0::1 ff02::1
"""


@pytest.mark.parametrize("address", SPECIAL.split())
def test_addresses_of_special_purpose(address: str) -> None:
    assert not is_public(address)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Allowed, with a sound and a picture; beside it another folder, with the same."""
    for name in ("allowed", "beside", "allowed-too"):
        (tmp_path / name / "inner").mkdir(parents=True)
        soundfile.write(tmp_path / name / "a.wav", np.zeros(8000), 16000)
        Image.new("RGB", (2, 2)).save(tmp_path / name / "inner" / "a.png")
    return tmp_path / "allowed"


Attempt = Callable[[object, MediaOptions], object]


def as_sound(source: object, options: MediaOptions) -> object:
    return load_audio(source, field="here", options=options)  # type: ignore[arg-type]


def as_picture(source: object, options: MediaOptions) -> object:
    return load_image(source, field="here", options=options)  # type: ignore[arg-type]


def as_checked_sound(source: object, options: MediaOptions) -> None:
    check_audio(source, "here", options)


def as_checked_picture(source: object, options: MediaOptions) -> None:
    check_image(source, "here", options)


def test_a_folder_and_its_contents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "link.png").symlink_to("inner/a.png")
    (folder / "linked").symlink_to("inner")
    (folder.parent / "also").symlink_to(folder)
    for options in (
        MediaOptions(local_folder=str(folder)),
        MediaOptions(strict=True, local_folder=f"{folder}/"),
        MediaOptions(strict=True, local_folder=str(folder.parent / "also")),
    ):
        as_sound(folder / "a.wav", options)
        as_sound(f"{folder}/inner/.././a.wav", options)
        as_picture((folder / "inner" / "a.png").as_uri(), options)
        as_picture(str(folder / "link.png"), options)
        as_picture(str(folder / "linked" / "a.png"), options)
    as_sound(str(folder.parent / "also" / "a.wav"), MediaOptions(local_folder=str(folder.parent / "also")))
    monkeypatch.chdir(folder)
    as_sound("a.wav", MediaOptions(local_folder="."))


@pytest.mark.parametrize("attempt", [as_sound, as_picture])
def test_paths_that_lead_out_of_the_folder_are_refused(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in the same words, whether there is something or not."""
    (folder / "out").symlink_to("../beside")
    (folder / "out.wav").symlink_to(folder.parent / "beside" / "a.wav")
    (folder / "nowhere").symlink_to("../beside/none")
    (folder.parent / "in").symlink_to(folder)
    monkeypatch.setenv("HOME", str(folder))
    options, said = MediaOptions(strict=True, local_folder=str(folder)), set()
    for source in (
        f"{folder}/../beside/a.wav",
        f"{folder}/../beside/none.wav",
        f"{folder}/../none/../allowed/../beside/a.wav",
        f"{folder}/out/a.wav",
        f"{folder}/out/none.wav",
        f"{folder}/out/inner/../a.wav",
        f"{folder}/out.wav",
        f"{folder}/nowhere",
        f"{folder}-too/a.wav",
        f"{folder.parent}/in/a.wav",
        folder.parent / "beside" / "inner" / "a.png",
        (folder.parent / "beside" / "a.wav").as_uri(),
        f"file://{folder}/%2e%2e/beside/a.wav",
        *("~/a.wav", "~root/a.wav", "~nobody-of-that-name/a.wav", "/etc/passwd", "/etc/passwd/x", "/root/x"),
        *("/proc/self/environ", "/dev/zero", "a.wav", "", "x" * 10_000),
    ):
        with pytest.raises(InputError) as caught:
            attempt(source, options)
        said.add(str(caught.value))
    assert said == {
        "here: is a path outside of the allowed folder; "
        "send the file itself as a data URI, or see frontend.media.local_folder"
    }


def test_a_missing_file_names_the_accepted_ones(folder: Path) -> None:
    for allowed, others in ((MediaOptions(), ", a URL or a data URI"), (MediaOptions(remote=False), ", or a data URI")):
        with pytest.raises(InputError) as caught:
            as_picture(folder / "none.png", allowed)
        assert caught.value.remedy == f"give the path of an existing file{others}"


def test_a_folder_replaced_after_the_check_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder becomes a link that leads out, between the question where a path leads and its opening."""
    seen = os.path.realpath

    def look(path: str, **settings: Any) -> str:
        found = seen(path, **settings)
        if str(path).endswith("a.png") and not (folder / "inner").is_symlink():
            (folder / "inner").rename(folder / "was")
            (folder / "inner").symlink_to("../beside/inner")
        return found

    monkeypatch.setattr(os.path, "realpath", look)
    with pytest.raises(InputError, match="there is no file"):
        as_picture(folder / "inner" / "a.png", MediaOptions(local_folder=str(folder)))
    assert (folder / "inner").is_symlink()


@pytest.mark.parametrize("attempt", [as_sound, as_picture, as_checked_sound, as_checked_picture])
@pytest.mark.parametrize("options", [STRICT, MediaOptions(local=False)], ids=["strict", "off"])
def test_local_files_off(folder: Path, attempt: Attempt, options: MediaOptions) -> None:
    """Also without a file: the error does not show whether it exists."""
    said = set()
    path = folder / "a.wav"
    for source in (path, str(folder / "none"), path.as_uri(), "file:///none", "", "~/a", "a\0b"):
        with pytest.raises(InputError) as caught:
            attempt(source, options)
        said.add(str(caught.value))
    (only,) = said
    assert only.startswith("here: is a path, and local files are not opened here")
    assert "frontend.media.local" in only


@pytest.mark.parametrize("attempt", [as_sound, as_picture, as_checked_sound, as_checked_picture])
@pytest.mark.parametrize("options", [STRICT, MediaOptions(remote=False)], ids=["strict", "off"])
def test_remote_media_off(attempt: Attempt, options: MediaOptions) -> None:
    for source in (URL, "HTTP://127.0.0.1:1/", "http://", "https://[::1"):
        with pytest.raises(InputError, match=r"media are not downloaded here.*frontend\.media\.remote") as caught:
            attempt(source, options)
        assert caught.value.field == "here"


@pytest.mark.parametrize("attempt", [as_checked_sound, as_checked_picture])
def test_domains_hold_for_every_kind(attempt: Attempt) -> None:
    attempt(URL, MediaOptions(strict=True, allowed_domains=(".example.com",)))
    with pytest.raises(InputError, match=r"media\.example\.com.*frontend\.media\.allowed_domains"):
        attempt(URL, MediaOptions(allowed_domains=("example.com",)))


def test_media_within_a_request_are_always_accepted(folder: Path) -> None:
    sound, picture = (folder / "a.wav").read_bytes(), (folder / "inner" / "a.png").read_bytes()
    encoded = base64.b64encode(sound).decode()
    for source in (sound, f"data:audio/wav;base64,{encoded}", {"data": encoded, "format": "wav"}, np.zeros(8000)):
        assert np.asarray(as_sound(source, STRICT)).shape == (8000,)
    encoded = base64.b64encode(picture).decode()
    for pixels in (picture, f"data:;base64,{encoded}", np.zeros((2, 2)), Image.new("L", (2, 2))):
        assert np.asarray(as_picture(pixels, STRICT)).shape == (2, 2, 3)


LIMIT = 100_000
OPTIONS = MediaOptions()
CONTENT = bytes(range(256)) * 16


def open_(source: str | Path, options: MediaOptions = OPTIONS) -> bytes:
    with open_location(source, field="here", options=options, max_bytes=LIMIT) as file:
        return file.read()


def test_a_path_opens_as_text_path_and_uri(tmp_path: Path) -> None:
    file = tmp_path / "a b%20c.bin"
    file.write_bytes(CONTENT)
    assert open_(file) == CONTENT
    assert open_(str(file)) == CONTENT
    assert open_(file.as_uri()) == CONTENT


@pytest.mark.parametrize(
    "uri",
    [
        "data:audio/wav;base64," + base64.b64encode(CONTENT).decode(),
        "DATA:;base64," + base64.encodebytes(CONTENT).decode().replace("\n", "%0A"),
        "data:," + "".join(f"%{byte:02x}" for byte in CONTENT),
    ],
)
def test_a_data_uri(uri: str) -> None:
    assert open_(uri) == CONTENT


@pytest.mark.parametrize("text", ["nowhere.wav", "file:///no/where.wav", "a\0b", "", ".", "UklGR" * 2000])
def test_no_such_file(text: str) -> None:
    with pytest.raises(InputError, match="here: there is no file") as caught:
        open_(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["data:audio/wav;base64,@@@", "data:audio/wav;base64,AAA", "data:nothing"])
def test_a_broken_data_uri(text: str) -> None:
    with pytest.raises(InputError, match=r"base64|comma"):
        open_(text)


def test_media_beyond_the_size_limit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(LIMIT + 1))
    encoded = base64.b64encode(bytes(LIMIT + 1)).decode()
    for attempt in (
        lambda: open_(file),
        lambda: open_(f"data:;base64,{encoded}"),
        lambda: decode_base64(encoded, field="here", max_bytes=LIMIT),
    ):
        with pytest.raises(InputError, match="larger than"):
            attempt()
