"""An engine under the sync guard: nothing in it waits for the device but what is listed, and what does is reported."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from omni.engine import EngineOutput, EngineRequest, RequestFailed, RequestFinished
from omni.errors import ConfigError, SyncError
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni_ar.layers.text_model import TextModel
from tests.support.ar_driver import plain_prompt
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny_text import TextEngine


def answer(stage: TextEngine) -> EngineOutput:
    """Starts the engine's thread, runs one request on it, and returns its last message."""
    over, last = threading.Event(), []

    def sink(output: EngineOutput) -> None:
        if isinstance(output, RequestFinished | RequestFailed):
            last.append(output)
            over.set()

    stage.engine.start()
    try:
        inputs = {"text": [Payload(plain_prompt(range(5)))]}
        sampling = {"text": SamplingParams(max_tokens=6)}
        stage.engine.submit(EngineRequest("r", frozenset({"text"}), inputs, sampling=sampling), sink)
        assert over.wait(PATIENCE_SECONDS)
    finally:
        stage.engine.close()
    return last[0]


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    logits: Callable[[TextModel, Tensor], Tensor] = TextModel.logits

    def peek(self: TextModel, hidden_RD: Tensor) -> Tensor:
        assert float(hidden_RD.abs().max()) > 0
        return logits(self, hidden_RD)

    monkeypatch.setattr(TextModel, "logits", peek)


def test_a_planted_wait_fails_the_request(text_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNI_SYNC_CHECK", "error")
    planted(monkeypatch)
    last = answer(TextEngine(text_model))
    assert isinstance(last, RequestFailed)
    assert isinstance(last.error, SyncError)
    assert (last.error.operation, last.error.phase) == ("torch.item", "compute_logits")


def test_a_planted_wait_is_logged_where_it_is(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("OMNI_SYNC_CHECK", "warn")
    planted(monkeypatch)
    assert isinstance(answer(TextEngine(text_model)), RequestFinished)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "torch.item in phase compute_logits makes the host wait" in record.getMessage()
    assert "in peek\n    assert float(hidden_RD.abs().max()) > 0" in record.getMessage()


def test_without_the_variable_a_wait_passes(text_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMNI_SYNC_CHECK", raising=False)
    planted(monkeypatch)
    assert isinstance(answer(TextEngine(text_model)), RequestFinished)


def test_a_bad_value_is_refused_at_the_start(text_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNI_SYNC_CHECK", "loud")
    engine = TextEngine(text_model).engine
    with pytest.raises(ConfigError, match="OMNI_SYNC_CHECK: 'loud' is not a check"):
        engine.start()
    engine.close()
