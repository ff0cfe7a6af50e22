"""Several engines of a model: their start, their end, floods of requests, and one timeline of all."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from omni import ConfigError, Omni, SamplingParams
from omni.cli import app
from omni.process.messages import Start
from omni.process.remote import RemoteEngine
from omni.timeline.read import read_trace
from tests.omni.process.engines import alive, assert_answers, children, group_of, pids_of
from tests.support.echo_family import echo_plugins, eventually
from tests.support.echo_omni import assert_nothing_held
from tests.support.entry_points import SOURCE_ROOTS
from tests.support.reference import tiny_checkpoint
from tests.support.resources import open_files
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import SHAPE, lengths, tiny_plugins, user

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
APART = {"singer.place": "cpu/2"}
CONNECTOR = "edges.writer-singer.connector"


def test_the_engines_on_the_cpu_divide_its_threads(model: Path, monkeypatch: pytest.MonkeyPatch):
    threads: dict[str, int] = {}
    load = RemoteEngine.load

    def spied(engine: RemoteEngine, start: Start, stages: Iterable[str], ranks: str) -> None:
        threads[start.place] = start.threads
        load(engine, start, stages, ranks)

    monkeypatch.setattr(RemoteEngine, "load", spied)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with Omni(model, device="cpu", plugins=echo_plugins(), place={"singer": "cpu/2"}):
        assert threads == {"cpu": 3, "cpu/2": 3}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"engine.process": "thread"}, r'engine\.process: is "thread", and the stages are placed on several'),
        ({"singer.place": "cuda:77"}, r"'cuda:77' does not exist here"),
        ({"singer.place": "here"}, r"singer\.place: 'here' is not a device"),
        ({"singer.place": "cpu/2,cpu/2"}, r"singer\.place: 'cpu/2' is named twice"),
        ({CONNECTOR: "cuda_ipc"}, r"edges\.writer-singer\.connector: 'cuda_ipc' does not connect cpu/?\d? and cpu/2"),
        ({"edges.writer-singer.pool_bytes": 2**60}, r"pool_bytes"),
    ],
    ids=lambda case: "" if isinstance(case, str) else ", ".join(f"{name} {value}" for name, value in case.items()),
)
def test_errors_at_the_start_keep_type_and_text(model: Path, settings: dict[str, object], text: str):
    gc.collect()
    before = children(), open_files()
    with pytest.raises(ConfigError, match=text):
        Omni(model, device="cpu", plugins=echo_plugins(), overrides=APART | settings)
    gc.collect()
    assert eventually(lambda: (children(), open_files()) == before)


def test_a_connector_that_does_not_fit_is_refused_before_an_engine_loads(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RemoteEngine, "load", lambda *_: pytest.fail("an engine loads"))
    settings = APART | {CONNECTOR: "cuda_ipc"}
    with pytest.raises(ConfigError, match="'cuda_ipc' does not connect"):
        Omni(model, device="cpu", plugins=echo_plugins(), load_format="dummy", overrides=settings)


def test_places_may_be_a_list_and_a_device_torch_s(model: Path):
    with Omni(model, device=torch.device("cpu"), plugins=echo_plugins(), place={"singer": ["cpu/2", "cpu/3"]}) as omni:
        assert set(pids_of(omni)) == {"cpu", "cpu/2", "cpu/3"}
        assert_answers(omni)


@pytest.fixture
def user_process(model: Path, settings: dict[str, object]) -> Iterator["subprocess.Popen[str]"]:
    """A program with a model, in a process group of its own. It ends before the test does."""
    code = f"""
import sys
sys.path[:0] = {SOURCE_ROOTS}
from omni import Omni
from tests.support.echo_family import echo_plugins
from tests.support.echo_omni import ENDLESS
omni = Omni(sys.argv[1], device="cpu", plugins=echo_plugins(), overrides={settings})
try:
    stream = omni.generate("abc", sampling=ENDLESS)
    next(stream)
    print(*omni._client.engine.pids.values(), flush=True)
    for _ in stream: pass
finally:
    omni.close()
    print("closed")
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        yield program
        program.kill()


ONE = {"engine.process": "process"}


@pytest.mark.parametrize(
    ("settings", "signal_number"),
    few(1, [(APART, signal.SIGINT), (ONE, signal.SIGKILL), (ONE, signal.SIGINT), (APART, signal.SIGKILL)], SLOW),
    ids=lambda case: ("one engine" if case is ONE else "two engines") if isinstance(case, dict) else case.name,
)
def test_all_engines_end_with_the_users_process(
    user_process: "subprocess.Popen[str]", settings: dict[str, object], signal_number: signal.Signals
):
    assert user_process.stdout is not None
    assert user_process.stderr is not None
    pids = [int(pid) for pid in user_process.stdout.readline().split()]
    assert len(pids) == (2 if settings is APART else 1)
    assert all(map(alive, pids))
    if signal_number == signal.SIGKILL:
        os.kill(user_process.pid, signal.SIGKILL)
    else:
        os.killpg(user_process.pid, signal.SIGINT)  # as a terminal does
        assert user_process.stdout.read() == "closed\n", "the engines wait for the user's process to decide"
        errors = user_process.stderr.read()
        assert errors.count("KeyboardInterrupt") == 1, errors
    assert eventually(lambda: not any(map(alive, pids)))


def test_hundreds_of_short_requests_leave_nothing(model: Path):
    gc.collect()
    before = children(), open_files(), threading.active_count()
    with Omni(model, device="cpu", plugins=echo_plugins(), overrides=APART) as omni:
        results = omni.generate([f"r{number}" for number in range(500)], stream=False)
        assert [result.text for result in results] == [f"r{number}" for number in range(500)]
        assert all(result.audio is not None for result in results)
        assert_nothing_held(omni)
        assert not group_of(omni)._tracked
        pids = list(pids_of(omni).values())
    assert not any(map(alive, pids))
    del omni
    gc.collect()
    assert eventually(lambda: (children(), open_files(), threading.active_count()) == before)


def test_stages_go_on_without_the_engine_of_one_that_is_done():
    settings = {"talker.place": "cpu/2", "code2wav.place": "cpu/2", "engine.restarts": 0}
    sampling: dict[str, SamplingParams] = lengths(4, 60)
    with Omni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins(), overrides=settings) as omni:
        wanted = omni.generate(user("hello"), stream=False, sampling=sampling)
        placed, stream = group_of(omni)._supervisor.by_place, omni.generate(user("hello"), sampling=sampling)
        first = next(output for output in stream if output.audio is not None)
        assert eventually(lambda: not placed["cpu"].engine.requests)
        assert placed["cpu/2"].engine.requests == 1
        os.kill(pids_of(omni)["cpu"], signal.SIGKILL)
        assert eventually(lambda: not placed["cpu"].up)
        parts = [first.audio, *(output.audio for output in stream)]
        assert wanted.audio is not None
        assert torch.equal(torch.cat([part for part in parts if part is not None]), wanted.audio)


def test_one_timeline_of_two_engines_on_one_clock(tmp_path: Path):
    """No part of it is a file, so none stays if the user's process ends while engines close."""
    file = tmp_path / "timeline.json"
    settings = {"talker.place": "cpu/2", "code2wav.place": "cpu/2", "engine.timeline": str(file)}
    omni = Omni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins(), overrides=settings)
    sampling: dict[str, SamplingParams] = lengths(6, 8)
    omni.generate(user("hello"), stream=False, sampling=sampling)
    first, second = pids_of(omni).values()
    os.kill(second, signal.SIGSTOP)
    thread = threading.Thread(target=omni.close)
    thread.start()
    try:
        assert eventually(lambda: not alive(first))
        assert os.listdir(tmp_path) == []
    finally:
        os.kill(second, signal.SIGCONT)
        thread.join()
    assert os.listdir(tmp_path) == ["timeline.json"]
    json.loads(file.read_text())
    trace = read_trace(str(file))
    launches = {stage: [span.launched for span in trace.phases if span.stage == stage] for stage in trace.stages}
    assert {"thinker", "talker", "code2wav"} <= launches.keys()
    order = ("thinker", "talker", "code2wav")
    for producer, consumer in pairwise(order):
        assert launches[producer], launches.keys()
        first_launch = min(interval.start for interval in launches[producer])
        assert min(interval.start for interval in launches[consumer]) > first_launch
        last_launch = max(interval.start for interval in launches[producer])
        assert max(interval.start for interval in launches[consumer]) > last_launch
    assert {"engine cpu", "engine cpu/2"} <= {span.stage for span in trace.host}
    done = CliRunner().invoke(app, ["timeline", str(file)])
    assert done.exit_code == 0, done.output
    assert "talker" in done.output
