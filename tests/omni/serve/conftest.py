"""Servers of the echo family and of a tiny text model, each shared by the tests of a file."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from openai import OpenAI
from PIL import Image

from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.echo_family import echo_model, eventually


@pytest.fixture(scope="session")
def echo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that repeats texts and sings them. No test may change it."""
    return echo_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def echo(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder)) as it:
        yield it


@pytest.fixture
def client(echo: Served) -> Iterator[OpenAI]:
    """No memory is held after a test."""
    with echo.client() as client:
        yield client
    echo.assert_nothing_held()


@pytest.fixture(scope="module")
def realtime_echo(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder), max_sessions=50) as it:
        yield it


@pytest.fixture
def tidy(realtime_echo: Served) -> Iterator[Served]:
    """A server without sessions and held memory at the end of a test."""
    yield realtime_echo
    assert eventually(lambda: realtime_echo.server.limits.sessions == 0)
    realtime_echo.assert_nothing_held()


@pytest.fixture(scope="session")
def picture() -> str:
    """6 by 4 pixels, as a data URI."""
    file = io.BytesIO()
    Image.new("RGB", (6, 4), "red").save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.fixture(scope="session")
def sound() -> bytes:
    """A tenth of a second at 16 kHz, as a wav."""
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(1600) / 8).astype(np.float32) / 2, 16000, format="WAV")
    return file.getvalue()
