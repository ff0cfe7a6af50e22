"""A server whose model's stage is cut across processes, one of which is killed: what its clients get."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from omni import AsyncOmni
from omni.errors import LostPeerError
from omni.serve.errors import describe
from tests.omni.process.engines import group_of, pids_of
from tests.omni.process.test_cut_models import pipelined
from tests.omni.serve.http_server import STRICT, Served, served
from tests.support.echo_family import eventually
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plugins import plugins_of
from tests.support.tiny_text import write_chat_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
    pytest.mark.usefixtures("forked_processes"),
]
PLACES = ("cpu", "cpu/2", "cpu/3")
ERROR = {
    "message": "rank 2 of 3 of stage 'text' ended, and is started again; send the request again",
    "type": "server_error",
    "param": None,
    "code": "engine_restarted",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    settings = {**STRICT, **pipelined("text", *PLACES), "engine.restart_seconds": 0}
    plugins = plugins_of("ar", "local", "shm", "text")
    omni = AsyncOmni(write_chat_model(tmp_path, layers=3), device="cpu", plugins=plugins, overrides=settings)
    with served(omni) as remote:
        yield remote


def asked(tokens: int, *, stream: bool) -> dict[str, object]:
    return {"model": "tiny", "prompt": "hello", "stream": stream, "max_tokens": tokens, "ignore_eos": True}


def test_clients_learn_which_rank_has_ended(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A stream has an error as its last event, and a request whose client awaits all of it gets the status 503. The log has a line
    for each."""
    answers: list[httpx.Response] = []
    url, whole = f"{server.url}/v1/completions", asked(900, stream=False)
    waiting = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", json=whole)))
    waiting.start()
    with ExitStack() as stack:
        streams = []
        for _ in range(2):
            request = httpx.stream("POST", url, json=asked(900, stream=True), timeout=PATIENCE_SECONDS)
            streams.append(stack.enter_context(request).iter_lines())
            next(streams[-1])
        running = group_of(server.omni)._tracked
        assert eventually(lambda: [request.started for request in list(running.values())] == [True] * 3)
        os.kill(pids_of(server.omni)["cpu/3"], signal.SIGKILL)
        for stream in streams:
            events = [line.removeprefix("data: ") for line in stream if line]
            assert json.loads(events[-1])["error"] == ERROR
    waiting.join(PATIENCE_SECONDS)
    assert [(answer.status_code, answer.json()["error"]) for answer in answers] == [(503, ERROR)]
    failed = [
        record for record in caplog.records if record.name == "omni.serve" and "LostPeerError" in record.getMessage()
    ]
    assert len(failed) == 3
    assert not any(record.exc_info for record in failed)
    assert server.post("/v1/completions", json=asked(4, stream=False)).status_code == 200


def test_clients_learn_which_whole_stage_has_ended() -> None:
    error = LostPeerError("text", "running", "its process 7 was killed by SIGKILL")
    said = describe(error, 1).body.error.message
    assert said == "the process of stage 'text' ended, and is started again; send the request again"
