"""Engines for tests in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import EngineRequest
from omni.errors import ConfigError
from omni.payload import AudioChunk
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni.plugin.manager import Plugins
from omni.sampling import SamplingParams
from omni.testing import SimulatedDevice, engine_for
from omni.testing.engines import GIVEN_UP, PipelineEngine
from tests.omni.testing.kit.adder import SAMPLES, AdderKind, AdderOptions, Numbers
from tests.omni.testing.kit.adder_faults import KeepsRequests
from tests.support.echo_family import echo_model, echo_plugins, pitch
from tests.support.plugins import plugins_of


@pytest.mark.parametrize("device", [CpuDevice, lambda: SimulatedDevice(3)], ids=["cpu", "simulated"])
def test_a_folder_answers_a_text(tmp_path: Path, device: Callable[[], Device]):
    with engine_for(echo_model(tmp_path), plugins=echo_plugins(), device=device()) as engine:
        result = engine.answer("hi", SamplingParams(max_tokens=3))
        assert result.tokens == [ord(letter) for letter in "hih"]
        assert set(result.audio) == {pitch("h"), pitch("i")}
        assert all(isinstance(meta, AudioChunk) for meta in result.outputs["audio"])
        assert result.stages["writer"].reason == "length"


def test_requests_come_and_go(tmp_path: Path):
    with engine_for(echo_model(tmp_path), plugins=echo_plugins()) as engine:
        first, second, third = engine.run(["abc", "d" * 90, "e"], arrivals=[4, 0, 9], departures={1: 6})
    assert first.tokens == [ord(letter) for letter in "abc"]
    assert second.error is GIVEN_UP
    assert 0 < len(second.tokens) < 90
    assert third.finished


def adder_plugins() -> Plugins:
    return plugins_of("local", adder="tests.omni.testing.kit.adder_plugin")


PIPELINE = Pipeline(
    family="adder",
    stages=(Stage(name="adder", kind="adder", options=AdderOptions()),),
    outputs=(PipelineOutput(modality="sums", stage="adder", adapter="omni.pipeline.adapter:PassThrough"),),
    frontend="nowhere:at_all",
)
REQUEST = EngineRequest("one", frozenset({"sums"}), {"adder": SAMPLES[0]})


def test_a_pipeline_needs_no_checkpoint_and_no_front_end():
    with engine_for(PIPELINE, plugins=adder_plugins(), overrides={"adder.max_num_seqs": 1}) as engine:
        result = engine.answer(REQUEST)
    assert result.outputs["sums"] == [Numbers(0), Numbers(1), Numbers(2)]


def test_a_test_may_tick_the_engine_itself():
    tick_to_the_end()


def test_records_that_a_stage_keeps_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(AdderKind, "worker", KeepsRequests.worker)
    with pytest.raises(AssertionError, match=r"hold something though no request is under way: .*'records': 1"):
        tick_to_the_end()


def tick_to_the_end() -> None:
    with engine_for(PIPELINE, plugins=adder_plugins()) as engine:
        result = engine.start(REQUEST)
        while not result.finished:
            engine.tick()


def test_a_bad_setting_is_refused():
    with (
        pytest.raises(ConfigError, match=r"adder\.rows"),
        engine_for(PIPELINE, plugins=adder_plugins(), overrides={"adder.rows": 1}),
    ):
        pass


def test_the_engine_is_closed_after_an_error():
    kept: list[PipelineEngine] = []
    with pytest.raises(ZeroDivisionError):
        fail_inside(kept)
    assert kept[0].start(REQUEST).error is not None


def fail_inside(kept: list[PipelineEngine]) -> None:
    with engine_for(PIPELINE, plugins=adder_plugins()) as engine:
        kept.append(engine)
        raise ZeroDivisionError
