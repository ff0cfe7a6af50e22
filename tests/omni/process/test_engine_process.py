"""An engine in its own process: the results and errors of a thread, and no leak, however either process ends."""

import gc
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omni import CheckpointError, ConfigError, Omni, PluginError, Result, SamplingParams, StageError, StructuredOutput
from omni.api.arguments import GenerateArguments, Messages
from omni.engine import EngineOptions
from omni.errors import InputError, LostPeerError, OverloadedError, SyncError
from omni.process import select
from omni.process.errors import ErrorData, RemoteTraceback
from omni.process.select import runs_in_process, threads_of, warn_of_thread
from tests.omni.process.engines import alive, group_of, pids_of
from tests.support.echo_family import BREAK, HANG, echo_plugins, eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held, run_program
from tests.support.entry_points import SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.resources import open_files
from tests.support.tiny_omni import SHAPE, assert_like, lengths, picture, sound, tiny_plugins, user

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
PROCESS = {"engine.process": "process", "engine.restart_seconds": 0}
FINAL = {"engine.restarts": 0}


def opened(model: Path, **overrides: object) -> Omni:
    return Omni(model, device="cpu", plugins=echo_plugins(), overrides=PROCESS | overrides)


@pytest.fixture(scope="module")
def omni(model: Path) -> Iterator[Omni]:
    """For tests after which the engine still runs."""
    with opened(model) as omni:
        yield omni
        assert_nothing_held(omni)


def pid_of(omni: Omni) -> int:
    (pid,) = pids_of(omni).values()
    return pid


def test_results_are_those_of_a_thread(tmp_path: Path):
    """Tokens, log-probabilities, grammars, stop strings, samples, sound, with pictures and sound in."""
    folder = tiny_checkpoint(3, **SHAPE)
    chat = user("what do you see", picture(), sound())
    structured = SamplingParams(structured=StructuredOutput(regex="[a-d]{12}"), max_tokens=40, seed=7)
    stop = SamplingParams(stop=("e", "zz"), max_tokens=30, temperature=1.0, seed=5)
    cases: list[tuple[Messages, GenerateArguments]] = [
        (chat, {"sampling": lengths(12, 20, temperature=0.8, logprobs=2, prompt_logprobs=1)}),
        ("hello", {"sampling": lengths(10, 8), "n": 3}),
        ("hello", {"sampling": {"thinker": structured}, "modalities": ("text",)}),
        ("hello", {"sampling": {"thinker": stop}, "modalities": ("text",)}),
    ]
    found: dict[str, list[Result]] = {}
    for process in ("thread", "process"):
        with Omni(folder, device="cpu", plugins=tiny_plugins(), overrides={"engine.process": process}) as omni:
            results = [omni.generate(messages, stream=False, **arguments) for messages, arguments in cases]
            found[process] = [each for result in results for each in (result, *result.alternatives)]
            assert_nothing_held(omni)
            assert omni.counters()["thinker"]["steps"] > 0
    for theirs, ours in zip(found["process"], found["thread"], strict=True):
        assert (theirs.text, theirs.tokens, theirs.usage) == (ours.text, ours.tokens, ours.usage)
        assert (theirs.logprobs, theirs.prompt_logprobs) == (ours.logprobs, ours.prompt_logprobs)
        assert (theirs.audio is None) == (ours.audio is None)
        if ours.audio is not None:
            assert_like(theirs.audio, ours.audio)  # samples share batches, and how many depends on time
    alone, expected = found["process"][0].audio, found["thread"][0].audio
    assert alone is not None
    assert expected is not None
    assert torch.equal(alone, expected)


@pytest.mark.parametrize("process", ["thread", "process"])
def test_errors_at_the_start_keep_type_and_text(model: Path, tmp_path: Path, process: str):
    def start(folder: Path, plugins: object = None, **overrides: object) -> None:
        Omni(folder, plugins=plugins or tiny_plugins(), overrides={"engine.process": process} | overrides)  # type: ignore[arg-type]

    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_checkpoint(3, **SHAPE).iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).symlink_to(file)
    with pytest.raises(CheckpointError, match="safetensors"):
        start(folder, **{"engine.device": "cpu"})
    with pytest.raises(ConfigError, match=r"device: 'cuda:77' does not exist here; there (is|are) \d+ CUDA devices?"):
        start(model, echo_plugins(), **{"engine.device": "cuda:77"})
    with pytest.raises(ConfigError, match=r"engine\.memory_bytes"):
        start(
            folder.parent / "model",
            **{"engine.device": "cpu", "engine.memory_bytes": 10, "engine.load_format": "dummy"},
        )
    with pytest.raises(ConfigError, match=r"engine\.process"):
        Omni(model, plugins=echo_plugins(), overrides={"engine.process": "elsewhere"})


def test_a_failed_start_leaves_nothing(model: Path):
    gc.collect()
    before = open_files()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no plugin serves"):
            Omni(model, device="cpu", plugins=tiny_plugins(), overrides=PROCESS)
    gc.collect()
    assert open_files() == before


def test_errors_of_a_request_are_its_own(omni: Omni):
    stream = omni.generate("abcdef" * 50, modalities=("text",))
    with pytest.raises(StageError, match="writer"):
        omni.generate(f"ab{BREAK}cd", stream=False)
    for _ in range(2):
        with pytest.raises(InputError, match=r"sampling.singer"):
            omni.generate("abc", sampling={"singer": SamplingParams(stop=("x",))}, stream=False)
    assert "".join(output.text for output in stream) == "abcdef" * 50
    assert_nothing_held(omni)


def test_without_restarts_a_killed_engine_fails_all_requests(model: Path):
    gc.collect()
    before = open_files()
    omni = opened(model, **FINAL)
    pid = pid_of(omni)
    streams = [omni.generate("abc", sampling=ENDLESS) for _ in range(4)]
    for stream in streams:
        next(stream)
    os.kill(pid, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(LostPeerError, match=rf"'writer, singer' .* its process {pid} was killed by SIGKILL"):
            list(stream)
    for _ in range(2):
        with pytest.raises(StageError, match=r"SIGKILL.*load the model again"):
            omni.generate("abc", stream=False)
    assert eventually(lambda omni=omni: omni.idle)  # type: ignore[misc]  # deleted below
    omni.close()
    assert not alive(pid)
    del streams, stream, omni
    gc.collect()
    assert open_files() == before


def test_a_process_that_is_cut_off_and_stays_is_killed(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("omni.process.child._EXIT_SECONDS", 0.2)
    with opened(model, **FINAL) as omni:
        stream, pid = omni.generate("abc", sampling=ENDLESS), pid_of(omni)
        next(stream)
        os.kill(pid, signal.SIGSTOP)  # so it does not notice
        group_of(omni)._supervisor.by_place["cpu"].engine._channel.shutdown()
        with pytest.raises(LostPeerError, match=rf"its process {pid} was killed by SIGKILL"):
            list(stream)
        assert not alive(pid)


def test_later_requests_run_on_the_restarted_engine(model: Path):
    with opened(model) as omni:
        pid = pid_of(omni)
        stream = omni.generate("abc", sampling=ENDLESS)
        next(stream)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(LostPeerError, match=rf"'writer, singer' .* {pid} was killed by SIGKILL"):
            list(stream)
        assert omni.generate("abc", stream=False).text == "abc"
        pids = {pid, pid_of(omni)}
        assert len(pids) == 2
        assert_nothing_held(omni)
    assert not any(map(alive, pids))


def test_an_engine_whose_loop_hangs_is_ended_and_restarted(model: Path):
    with opened(model, **{"engine.turn_seconds": 0.5}) as omni:
        pid = pid_of(omni)
        stream = omni.generate(f"abc{HANG}", modalities=("text",))
        with pytest.raises(
            LostPeerError, match=rf"process {pid} failed: .* longer than 0.5 s, .* raise engine.turn_sec"
        ):
            list(stream)
        assert omni.generate("abc", stream=False).text == "abc"
        assert_nothing_held(omni)
    assert not alive(pid)


@pytest.mark.slow
def test_kills_at_random_moments_leave_nothing(model: Path):
    gc.collect()
    before = open_files(), threading.active_count()
    for seed in range(20):
        delay = random.Random(seed).uniform(0, 0.1)
        with opened(model, **FINAL) as omni:
            pid = pid_of(omni)
            ends: list[str] = []

            def ask(omni: Omni = omni, ends: list[str] = ends) -> None:
                try:
                    ends.append(omni.generate("abc" * 200, stream=False).text)
                except StageError as error:
                    ends.append(str(error))

            threads = [threading.Thread(target=ask) for _ in range(16)]
            for thread in threads:
                thread.start()
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
            assert len(ends) == 16
            assert all(end == "abc" * 200 or "was killed by SIGKILL" in end for end in ends), ends
        assert not alive(pid)
    del omni, threads, thread
    gc.collect()
    assert eventually(lambda: (open_files(), threading.active_count()) == before)


def test_a_death_is_noticed_though_a_forked_child_holds_the_socket(model: Path):
    with opened(model) as omni:
        stream = omni.generate("abc", sampling=ENDLESS)
        next(stream)
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(PATIENCE_SECONDS,))
        child.start()
        try:
            os.kill(pid_of(omni), signal.SIGKILL)
            with pytest.raises(StageError, match="SIGKILL"):
                list(stream)
        finally:
            child.kill()
            child.join()
            child.close()


def test_the_interpreters_end_closes_the_engine(model: Path):
    code = f"""
import sys
sys.path[:0] = {SOURCE_ROOTS}
from omni import Omni
from tests.support.echo_family import echo_plugins
from tests.support.echo_omni import ENDLESS
omni = Omni(sys.argv[1], device="cpu", plugins=echo_plugins(), overrides={PROCESS})
stream = omni.generate("abc", sampling=ENDLESS)
print(*omni._client.engine.pids.values(), "end")
"""
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True)
    pid, end = done.stdout.split()
    assert end == "end"
    assert done.stderr == ""
    assert eventually(lambda: not alive(int(pid)))


def test_its_process_collects_garbage_without_imported_objects():
    """With a user's process that has ended. This process asks it instead."""
    done = run_program("""
import gc, socket
gc.disable()  # as its start does
from omni.process.main import main
os._exit = lambda status: print(gc.isenabled(), gc.get_freeze_count() > 100_000, file=sys.stderr)
ours, theirs = socket.socketpair()
ours.close()
main(theirs.detach(), ())
""")
    assert done.stderr.split() == ["True", "True"]


def test_nothing_of_many_requests_stays(omni: Omni):
    pid = pid_of(omni)
    prompt, sampling = user("a", picture(height=224, width=224), "b" * 20_000), SamplingParams(max_tokens=1000)

    def mappings() -> int:
        return Path(f"/proc/{pid}/maps").read_text().count("memfd")

    def run() -> None:
        assert len({omni.generate(prompt, stream=False, sampling=sampling).text for _ in range(2)}) == 1
        assert_nothing_held(omni)

    run()
    ours, theirs, mapped = open_files(), len(os.listdir(f"/proc/{pid}/fd")), mappings()
    for _ in range(3):
        run()
    assert (open_files(), len(os.listdir(f"/proc/{pid}/fd")), mappings()) == (ours, theirs, mapped)


def test_log_records_come_to_the_users_logging(model: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path):
    with caplog.at_level(logging.WARNING):
        opened(model, **{"engine.timeline": str(tmp_path / "timeline.json")}).close()
    assert [(record.name, record.levelname) for record in caplog.records] == [("omni.timeline.file", "WARNING")]
    assert "nothing was launched" in caplog.text


def test_many_threads_ask_at_once(omni: Omni):
    texts: list[str] = []

    def ask(number: int) -> None:
        texts.append(omni.generate(f"request {number}", stream=False).text)
        omni.usage()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == sorted(f"request {number}" for number in range(16))


def test_auto_runs_engines_of_cuda_in_a_process():
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert [runs_in_process(EngineOptions(process="auto"), device) for device in (cpu, cuda)] == [False, True]
    assert [runs_in_process(EngineOptions(process="thread"), device) for device in (cpu, cuda)] == [False, False]
    assert [runs_in_process(EngineOptions(process="process"), device) for device in (cpu, cuda)] == [True, True]


def test_an_engine_that_has_no_process_by_default_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    warn_of_thread(EngineOptions(process="auto"), cuda)
    monkeypatch.setattr(select, "CAN_START", False)
    warn_of_thread(EngineOptions(process="auto"), cpu)
    warn_of_thread(EngineOptions(process="thread"), cuda)
    assert not caplog.records
    assert not runs_in_process(EngineOptions(process="auto"), cuda)
    warn_of_thread(EngineOptions(process="auto"), cuda)
    (record,) = caplog.records
    assert "engine.process: the engine runs in a thread" in record.getMessage()


@pytest.mark.parametrize(
    ("places", "threads"),
    [
        (["cpu"], [7]),
        (["cpu", "cpu/2"], [3, 3]),
        (["cuda:0", "cpu", "cuda:1", "cpu/a", "cpu/b"], [7, 2, 7, 2, 2]),
        ([f"cpu/{number}" for number in range(9)], [1] * 9),
    ],
)
def test_engines_on_the_cpu_divide_its_threads(monkeypatch: pytest.MonkeyPatch, places: list[str], threads: list[int]):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_of(place, places) for place in places] == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert [threads_of(place, places) for place in places] == [7] * len(places)


class Odd(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"odd {first + second}")


@pytest.mark.parametrize(
    "error",
    [
        *(kind("a.b", "is wrong", "mend it") for kind in (CheckpointError, ConfigError, InputError)),
        *(kind("a.b", "is long", "shorten it", "raise a.c") for kind in (InputError, OverloadedError)),
        StageError("thinker", "doing it", "broke"),
        LostPeerError("thinker, talker", "running", "its process 7 was killed by SIGKILL"),
        LostPeerError("thinker", "running", "its process 7 was killed by SIGKILL", "rank 1 of 2 of stage 'thinker'"),
        PluginError("no plugin"),
        SyncError("item", None, "leave it out"),
        RuntimeError("out of order"),
        KeyError("name"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_rebuilt(error: Exception):
    error.add_note("a note")
    other = ErrorData.of(error).rebuild("running")
    assert (type(other), str(other), vars(other)["__notes__"]) == (type(error), str(error), ["a note"])
    assert vars(other) == vars(error)
    assert other.__cause__ is None


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_whose_text_and_notes_raise_still_passes() -> None:
    error = HostileError("odd")
    error.__dict__["__notes__"] = [error]
    error.__cause__ = ValueError("cause")
    other = ErrorData.of(error).rebuild("running")
    assert isinstance(other, StageError)
    assert "HostileError" in str(other)


def test_errors_of_unknown_types_keep_their_text_and_traceback():
    try:
        raise Odd(1, 2)
    except Odd as error:
        other = ErrorData.of(error).rebuild("starting")
    assert str(other) == "stage 'engine' failed while starting: Odd: odd 3"
    assert isinstance(other.__cause__, RemoteTraceback)
    assert "raise Odd(1, 2)" in str(other.__cause__)
