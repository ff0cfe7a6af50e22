import base64
from pathlib import Path

import pytest

from omni.errors import InputError
from omni.media import MediaOptions
from omni.media.source import decode_base64, open_location

LIMIT = 100_000
OPTIONS = MediaOptions()
CONTENT = bytes(range(256)) * 16


def open_(source: str | Path, options: MediaOptions = OPTIONS) -> bytes:
    with open_location(source, field="here", options=options, max_bytes=LIMIT) as file:
        return file.read()


def test_a_path(tmp_path: Path) -> None:
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


def test_size_limits(tmp_path: Path) -> None:
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
