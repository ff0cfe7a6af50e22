"""Engines under the sync guard and under CUDA's own: only listed code waits for the device, and other waits are reported."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from omni.device import Device, SyncCheck, open_device, sync_guard
from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished
from omni.errors import ConfigError, SyncError
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni_ar.layers.text_model import TextModel
from tests.support.ar_driver import plain_prompt
from tests.support.csm_reference import speak, tiny_csm, turn
from tests.support.devices import no_synchronization
from tests.support.omni_engine import CHATS, SHAPES, OmniEngine
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import SLOW, few
from tests.support.tiny_text import TextEngine

DEVICES = pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
GRAPHS = pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 1},
    {"bad_words_ids": ((4, 5), (6,)), "allowed_token_ids": tuple(range(100))},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.2, "logit_bias": {7: 3.0}},
    {"bad_words_ids": ((4, 5), (6,)), "min_tokens": 3, "stop_token_ids": (3,), "suppress_token_ids": (1, 2)},
]


@contextmanager
def nothing_waits(device: Device) -> Iterator[None]:
    """Neither the sync guard nor CUDA's own check reports a wait. Both check this thread: no other thread uses the device."""
    with ExitStack() as stack:
        if device.torch_device.type == "cuda":
            stack.enter_context(no_synchronization())
        stack.enter_context(sync_guard(device, SyncCheck.ERROR))
        yield


@pytest.mark.thorough
@DEVICES
@pytest.mark.parametrize("graphs", few(1, [True, False], SLOW), ids=["captured", "eager"])
def test_text_never_waits(text_model: Path, name: str, graphs: bool) -> None:
    """Requests that join, run in chunks, are preempted and end."""
    device = open_device(name)
    rows = {"max_num_seqs": 2, "block_size": 4, "num_blocks": 10, "max_model_len": 40, "max_num_batched_tokens": 5}
    stage = TextEngine(text_model, {f"text.{option}": value for option, value in rows.items()}, device, graphs=graphs)
    with nothing_waits(device):
        recorders = []
        for index, sampling in enumerate(SAMPLING):
            recorders.append(stage.submit(str(index), range(2 + 3 * index), max_tokens=24, **sampling))
            stage.tick()
        stage.run()
    assert all(recorder.reason in ("length", "stop") and recorder.tokens for recorder in recorders)
    assert stage.engine.counters()["text"]["preemptions"] > 0


@pytest.mark.thorough
@pytest.mark.gpu
@GRAPHS
def test_text_speech_and_sound_never_wait(graphs: bool) -> None:
    omni = OmniEngine(tiny_checkpoint(**SHAPES["as written"]), {}, "cuda", graphs=graphs)
    requests = [omni.request(asked) for asked in CHATS]
    with nothing_waits(omni.device):
        results = omni.run_requests(requests, [0, 3, 5, 9, 14])
    assert all(result.error is None for result in results), [result.error for result in results]
    assert all(result.ids for result in results)
    assert all(result.wave.size for result in results[:-1])


@pytest.mark.thorough
@DEVICES
@GRAPHS
def test_frames_that_may_end_their_request_never_wait(name: str, graphs: bool) -> None:
    settings = {"backbone.max_num_seqs": 2, "vocoder.max_num_seqs": 2}
    omni = OmniEngine(tiny_csm(sampled=True, stop_gain=3.0, groups=2, codebook_size=32), settings, name, graphs=graphs)
    spoken = [speak("hello", frames=20), speak(turn("user", "how are you", 0.3, 1), "and you", frames=11)]
    requests = [omni.request(asked) for asked in (*spoken, speak("so", frames=12, temperature=0.9, seed=3))]
    with nothing_waits(omni.device):
        results = omni.run_requests(requests, [0, 3, 5])
    assert all(result.error is None for result in results), [result.error for result in results]
    assert all(result.wave.size for result in results)


def finish(engine: Engine, requests: list[EngineRequest]) -> list[EngineOutput]:
    """The last message of each, from the engine's own thread."""
    over = threading.Event()
    last: list[EngineOutput] = []

    def sink(output: EngineOutput) -> None:
        if isinstance(output, RequestFinished | RequestFailed):
            last.append(output)
            if len(last) == len(requests):
                over.set()

    engine.start()
    try:
        for request in requests:
            engine.submit(request, sink)
        assert over.wait(PATIENCE_SECONDS)
    finally:
        engine.close()
    return last


@pytest.mark.thorough
@pytest.mark.gpu
@GRAPHS
def test_the_engine_s_thread_with_the_variable_set(
    text_model: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_SYNC_CHECK", "error")
    text = TextEngine(text_model, {}, open_device("cuda"), graphs=graphs).engine
    inputs = {"text": [Payload(plain_prompt(range(5)))]}
    asked = [
        EngineRequest(str(index), frozenset({"text"}), inputs, sampling={"text": SamplingParams(max_tokens=30, **more)})
        for index, more in enumerate(SAMPLING)
    ]
    assert all(isinstance(output, RequestFinished) for output in finish(text, asked))

    omni = OmniEngine(tiny_checkpoint(**SHAPES["as written"]), {}, "cuda", graphs=graphs)
    outputs = finish(omni.engine, [omni.request(asked) for asked in CHATS])
    assert all(isinstance(output, RequestFinished) for output in outputs), outputs


def answer(text_model: Path) -> EngineOutput:
    inputs = {"text": [Payload(plain_prompt(range(5)))]}
    request = EngineRequest("r", frozenset({"text"}), inputs, sampling={"text": SamplingParams(max_tokens=6)})
    return finish(TextEngine(text_model).engine, [request])[0]


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    logits: Callable[[TextModel, Tensor], Tensor] = TextModel.logits

    def peek(self: TextModel, hidden_RD: Tensor) -> Tensor:
        assert float(hidden_RD.abs().max()) > 0
        return logits(self, hidden_RD)

    monkeypatch.setattr(TextModel, "logits", peek)


def test_a_planted_wait_fails_the_request(text_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNI_SYNC_CHECK", "error")
    planted(monkeypatch)
    last = answer(text_model)
    assert isinstance(last, RequestFailed)
    assert isinstance(last.error, SyncError)
    assert (last.error.operation, last.error.phase) == ("torch.item", "compute_logits")


def test_a_planted_wait_is_logged_where_it_is(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("OMNI_SYNC_CHECK", "warn")
    planted(monkeypatch)
    assert isinstance(answer(text_model), RequestFinished)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "torch.item in phase compute_logits makes the host wait" in record.getMessage()
    assert "in peek\n    assert float(hidden_RD.abs().max()) > 0" in record.getMessage()


def test_without_the_variable_a_wait_passes(text_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMNI_SYNC_CHECK", raising=False)
    planted(monkeypatch)
    assert isinstance(answer(text_model), RequestFinished)


def test_a_bad_value_is_refused_at_the_start(text_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNI_SYNC_CHECK", "loud")
    engine = TextEngine(text_model).engine
    with pytest.raises(ConfigError, match="OMNI_SYNC_CHECK: 'loud' is not a check"):
        engine.start()
    engine.close()
