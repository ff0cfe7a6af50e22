"""`/health` when an engine's process ends, and when one of its stages is closed."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from omni import AsyncOmni
from tests.omni.process.engines import pids_of
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.echo_family import EXPLODE, eventually

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
    pytest.mark.usefixtures("forked_processes"),
]
CHAT = "/v1/chat/completions"


def kill_engine(omni: AsyncOmni) -> None:
    (pid,) = pids_of(omni).values()
    os.kill(pid, signal.SIGKILL)


def said(text: str) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]}


def status(server: Served) -> tuple[int, str]:
    response = server.get("/health")
    return response.status_code, response.json()["status"]


def up(server: Served) -> bool:
    return "omni_engine_up 1.0" in server.get("/metrics").text


@pytest.mark.plants_faults
def test_a_killed_engine_and_a_closed_stage_are_not_healthy(echo_folder: Path) -> None:
    omni = echo_omni(echo_folder, **{"engine.process": "process", "engine.restart_seconds": 0.3})
    with served(omni) as remote:
        assert (status(remote), up(remote)) == ((200, "ok"), True)
        kill_engine(omni)
        assert eventually(lambda: status(remote) == (503, "restarting"))
        assert not up(remote)
        # It is taken, and waits for the engine.
        assert remote.post(CHAT, json=said("hello")).status_code == 200
        assert (status(remote), up(remote)) == ((200, "ok"), True)
        response = remote.post(CHAT, json=said(f"a{EXPLODE}"))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_failed")
        assert status(remote) == (503, "failed")
        assert remote.get("/health").json() == {"status": "failed"}


def test_an_engine_that_is_not_started_again_is_not_healthy(echo_folder: Path) -> None:
    omni = echo_omni(echo_folder, **{"engine.process": "process", "engine.restarts": 0})
    with served(omni) as doomed:
        kill_engine(doomed.omni)
        assert eventually(lambda: status(doomed) == (503, "failed"))
        response = doomed.post(CHAT, json=said("hello"))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_failed")
