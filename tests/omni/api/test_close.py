"""Closing, failing and being forgotten: no thread and no request stays behind."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import Omni, Output
from omni.errors import CheckpointError, ConfigError, StageError
from tests.support.echo_family import EXPLODE, GATES, echo_model, echo_plugins, eventually
from tests.support.echo_omni import ENDLESS, opened, run_program
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("no_thread_stays")]


def test_close_is_idempotent(model: Path) -> None:
    omni = opened(model)
    omni.close()
    omni.close()
    with pytest.raises(StageError, match="it is closed"):
        omni.generate("hello")


def test_one_collection_frees_a_closed_model(model: Path) -> None:
    """As `Device.free_memory` makes before the next model is loaded: its memory is that of the closed one."""
    with opened(model) as omni:
        omni.generate("hello", stream=False)
        engine = weakref.ref(omni._client.engine)
    cycle: list[object] = [omni]
    cycle.append(cycle)  # so that its finalizer runs within the collection
    del omni, cycle
    gc.collect()
    assert engine() is None


def test_close_while_busy_ends_every_stream(model: Path) -> None:
    GATES["closing"].clear()
    omni = opened(model)
    errors: list[str] = []

    def read(stream: Iterator[Output]) -> None:
        try:
            for _ in stream:
                started.set()
        except StageError as error:
            errors.append(str(error))

    started = threading.Event()
    streams = [omni.generate(prompt, sampling=ENDLESS) for prompt in ("abc", "wait closing", "def")]
    threads = [threading.Thread(target=read, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    assert started.wait(PATIENCE_SECONDS)
    closer = threading.Thread(target=omni.close)
    closer.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert errors == ["stage 'engine' failed while closing: the engine was closed"] * 3, "also the one in preparation"
    GATES["closing"].set()
    closer.join()
    assert omni.idle


def test_close_from_two_threads_waits_in_both(model: Path) -> None:
    omni = opened(model)
    stream = omni.generate("abc", sampling=ENDLESS)
    thread = threading.Thread(target=omni.close)
    thread.start()
    omni.close()
    assert omni.idle
    thread.join()
    with pytest.raises(StageError, match="closed"):
        list(stream)


@pytest.mark.plants_faults
def test_a_faulty_stage_ends_its_requests_and_close_still_works(model: Path) -> None:
    with opened(model) as omni:
        bystander = omni.generate("abc", sampling=ENDLESS)
        with pytest.raises(StageError, match="RuntimeError: boom"):
            omni.generate(f"ab{EXPLODE}", stream=False)
        with pytest.raises(StageError, match="boom"):
            list(bystander)
        with pytest.raises(StageError, match=r"'writer' .* is closed after a fault, RuntimeError: boom"):
            omni.generate("too late", stream=False)
        assert eventually(lambda: omni.idle)


def test_a_forgotten_model_is_closed(model: Path) -> None:
    omni = opened(model)
    assert omni.generate("hello", stream=False).text == "hello"
    del omni
    gc.collect()
    # The fixture waits for its threads to end.


def test_a_stream_keeps_its_model(model: Path) -> None:
    GATES["kept"].clear()
    stream = opened(model).generate("wait kept")
    gc.collect()
    time.sleep(0.05)
    GATES["kept"].set()
    assert "".join(output.text for output in stream) == "wait kept"


def test_an_open_model_does_not_hang_the_interpreter(model: Path) -> None:
    ran = run_program(f"""
from tests.support.echo_omni import ENDLESS, opened
omni = opened({str(model)!r})
stream = omni.generate("abc", sampling=ENDLESS)
print(next(stream).index)
""")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


def test_a_mistake_in_model_or_settings_is_raised_at_once(model: Path, tmp_path: Path) -> None:
    for setting, value in (("writer.speed", 3), ("engine.dtype", "int8"), ("engine.load_format", "gguf")):
        with pytest.raises(ConfigError, match=setting.partition(".")[2]):
            opened(model, **{setting: value})
    with pytest.raises(ConfigError, match="device"):
        Omni(model, device="tpu", plugins=echo_plugins())
    with pytest.raises(CheckpointError, match="there is no folder"):
        opened(tmp_path / "nowhere")
    broken = echo_model(tmp_path)
    (broken / "config.json").write_text('{"model_type": "echo"}')
    with pytest.raises(CheckpointError, match=r"config\.json: does not fit family 'echo': KeyError: 'speaks'"):
        opened(broken)
