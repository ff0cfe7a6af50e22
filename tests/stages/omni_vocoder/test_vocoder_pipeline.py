"""Both media kinds and the local connector in the real engine: front end -> encoder -> vocoder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.engine import (
    StageOutput,
)
from omni.errors import ConfigError, OmniError
from omni.payload import Payload
from omni.pipeline import Pipeline
from omni_encoder.inputs import MediaItem
from tests.support.devices import QueuedDevice
from tests.support.frame_bench import Listener
from tests.support.wavemaker import WaveMaker, builtin_plugins, voice_pipeline, whole_wave


class Speaker(Listener):
    def __init__(self, device: Device, folder: Path, pipeline: Pipeline | None = None) -> None:
        super().__init__(device, folder, pipeline or voice_pipeline(), builtin_plugins())

    def say(self, name: str, codes: list[list[int]]) -> None:
        meta = MediaItem(index=0, key=str(codes), batch_key=0, length=len(codes))
        self.submit(name, {"coder": [Payload(meta, {"codes": torch.tensor(codes)})]})

    def expect(self, name: str, codes: list[list[int]]) -> None:
        whole = whole_wave(WaveMaker(), (np.array(codes) + 1).tolist())
        self.expect_wave(name, "voice", len(codes), whole, rtol=1e-6)
        assert sum(isinstance(output, StageOutput) for output in self.heard[name]) > 1


def codes_of(count: int, seed: int) -> list[list[int]]:
    values: list[list[int]] = np.random.default_rng(seed).integers(0, 50, (count, 2)).tolist()
    return values


@pytest.mark.plants_faults
@pytest.mark.parametrize("make_device", [CpuDevice, QueuedDevice, pytest.param(CudaDevice, marks=pytest.mark.gpu)])
def test_many_requests_one_bad_one_aborted(make_device: Callable[[], Device], tmp_path: Path) -> None:
    device = make_device()
    listener = Speaker(device, tmp_path)
    codes = {f"r{n}": codes_of(4 + 3 * n, n) for n in range(5)}
    for name, rows in codes.items():
        listener.say(name, rows)
    listener.say("same as r4", codes["r4"])
    listener.say("gone", codes_of(40, 9))
    if not isinstance(
        device, QueuedDevice
    ):  # there a phase does not run where it is launched, so it cannot raise there
        listener.say("bad", [[-1, 0]])
    listener.run(ticks=4)
    listener.engine.abort("gone", OmniError("the user left"))
    listener.run()
    for name, rows in codes.items():
        listener.expect(name, rows)
    listener.expect("same as r4", codes["r4"])
    assert listener.engine.idle
    assert listener.error("gone") == "the user left"
    if "bad" in listener.heard:
        assert len(listener.heard["bad"]) == 1
        assert "stage 'coder' failed while encoding its media" in listener.error("bad")
    listener.engine.close()


@pytest.mark.parametrize("stage", ["coder", "wavemaker"])
def test_a_factory_of_the_wrong_thing_is_named(stage: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"pipeline\.stages\.(coder|voice)\.model: gave a object; kind '\w+' takes an ",
    ):
        Speaker(CpuDevice(), tmp_path, voice_pipeline(**{stage: "build_nothing"}))
