"""Audio that a stage gives to users is checked before it leaves the engine."""

import numpy as np
import pytest

from omni.device import COMPLETED
from omni.engine.request import EngineOutput, SafeSink, StageOutput
from omni.engine.values import give
from omni.errors import StageError
from omni.payload import AudioChunk, Payload
from omni.stage import Produced
from tests.support.fake_graph import FakeGraph


class Worker:
    """Stands for a plugin's."""


def given(chunk: AudioChunk) -> list[EngineOutput]:
    """A user's outputs of a chunk."""
    outputs: list[EngineOutput] = []
    give(SafeSink("r", outputs.append), StageOutput("audio", chunk), "voice", Worker)
    return outputs


@pytest.mark.parametrize(
    ("samples", "rate", "problem"),
    [
        (np.zeros(3), 24000, r"float64 \[3\]: give a float32 array"),
        (np.zeros((2, 3), np.float32), 24000, r"float32 \[2, 3\]: give a float32 array"),
        ([0.0], 24000, "are a list: give a float32 array"),
        (np.array([np.nan], np.float32), 24000, "NaN or infinite"),
        (np.array([np.inf], np.float32), 24000, "NaN or infinite"),
        (np.zeros(3, np.float32), 0, "is 0: give Hz"),
        (np.zeros(3, np.float32), None, "is None: give Hz"),
    ],
)
def test_samples_that_no_user_can_play_are_refused(samples: object, rate: object, problem: str) -> None:
    chunk = AudioChunk(samples=samples, sample_rate=rate)  # type: ignore[arg-type]
    with pytest.raises(
        StageError, match=f"stage 'voice' failed while giving an output: .*{problem}.*{__name__}"
    ) as caught:
        given(chunk)
    assert caught.value.stage == "voice"


def test_samples_are_as_a_vocoder_gives_them() -> None:
    assert len(given(AudioChunk(samples=np.zeros(0, np.float32), sample_rate=1))) == 1


def test_the_request_with_such_samples_fails_and_others_go_on() -> None:
    graph = FakeGraph()
    bad, good = graph.submit("bad", "audio"), graph.submit("good", "audio")
    for name, value in (("bad", np.nan), ("good", 0.5)):
        chunk = AudioChunk(samples=np.full(4, value, np.float32), sample_rate=24000)
        graph.speaker.outbox.append(Produced(name, Payload(chunk), COMPLETED))
    graph.settle()
    assert "NaN or infinite" in str(bad.failure)
    assert not good.finished
    assert len(good.outputs) == 1
