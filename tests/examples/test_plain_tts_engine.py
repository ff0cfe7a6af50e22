"""The stranger's family against a plain loop over the same weights: codes exactly, however its requests are run."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from omni.device import SyncCheck, open_device, sync_guard
from omni.testing import LaunchGuard
from tests.examples.plain_speech import MOST, TEXTS, PlainSpeech, Speech, assert_said, plugins, say, write_tiny
from tests.support.devices import full_float32
from tests.support.omni_engine import OmniEngine
from tests.support.tiers import SLOW, few

SETTINGS: dict[str, dict[str, object]] = {
    "as shipped": {},
    "far ahead": {"talker.max_in_flight": 4, "talker.max_num_seqs": 2, "vocoder.max_num_seqs": 2},
    "small steps": {"talker.max_num_batched_tokens": 8, "vocoder.first_chunk_frames": 1, "vocoder.chunk_frames": 3},
    "few blocks": {
        "talker.block_size": 4,
        "talker.num_blocks": 26,
        "talker.prefix_cache": False,
        "talker.max_in_flight": 3,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("plain_tts") / "model")


@pytest.fixture(scope="module")
def spoken(folder: Path) -> list[Speech]:
    """The expected texts."""
    plain = PlainSpeech(folder)
    return [plain.speak(text, MOST) for text in TEXTS]


@pytest.fixture(autouse=True)
def no_tf32() -> Iterator[None]:
    with full_float32():
        yield


def test_the_tiny_model_is_lively(spoken: list[Speech]) -> None:
    frames = [tuple(frame) for speech in spoken for frame in speech.frames]
    assert len(set(frames)) > len(frames) // 2
    assert {speech.reason for speech in spoken} == {"stop", "length"}
    assert len({speech.frames[0][0] for speech in spoken if speech.frames}) > 3, "whatever it is to say"


@pytest.mark.parametrize(
    ("device", "graphs"),
    [
        ("cpu", False),
        pytest.param("cpu", True, id="replayed"),
        pytest.param("cuda", False, marks=pytest.mark.gpu, id="eager"),
        pytest.param("cuda", True, marks=pytest.mark.gpu, id="captured"),
    ],
)
@pytest.mark.parametrize("settings", few(1, [*SETTINGS][::-1], SLOW))
def test_a_batch_speaks_as_each_alone(
    folder: Path, spoken: list[Speech], settings: str, device: str, graphs: bool
) -> None:
    engine = OmniEngine(folder, SETTINGS[settings], device, graphs=graphs, plugins=plugins())
    results = engine.run([say(text) for text in TEXTS], arrivals=range(0, 2 * len(TEXTS), 2))
    for result, speech in zip(results, spoken, strict=True):
        assert_said(result, speech)
    counted = engine.engine.counters()["talker"]
    assert (counted["preemptions"] > 0) == (settings == "few blocks")
    assert engine.most_rows["talker"] > 1


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_requests_run_in_phases_and_wait_for_nothing(folder: Path, name: str) -> None:
    device = open_device(name)
    engine = OmniEngine(folder, SETTINGS["far ahead"], device, plugins=plugins())
    requests = [engine.request(say(text)) for text in TEXTS]
    with LaunchGuard(device) if name == "cpu" else nullcontext() as guard, sync_guard(device, SyncCheck.ERROR):
        results = engine.run_requests(requests)
    assert all(result.error is None for result in results)
    assert guard is None or guard.operations > 1000
