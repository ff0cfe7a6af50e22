"""Both media kinds and the local connector in the real engine: front end -> encoder -> vocoder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.engine import (
    Engine,
    EngineOptions,
    EngineOutput,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    StageFinished,
    StageOutput,
    build_engine,
    check_pipeline,
)
from omni.errors import ConfigError, OmniError
from omni.payload import AudioChunk, Payload
from omni.pipeline import Pipeline
from omni.testing import LaunchGuard
from omni_encoder.inputs import MediaItem
from support.queued_device import QueuedDevice
from support.voice_pipeline import builtin_plugins, voice_pipeline
from support.wavemaker import WaveMaker, whole_wave


def build(device: Device, folder: Path, pipeline: Pipeline | None = None) -> Engine:
    (folder / "config.json").write_text("{}")
    plugins = builtin_plugins()
    plan = check_pipeline(pipeline or voice_pipeline(), plugins)
    return build_engine(plan, Checkpoint(folder), plugins, device, EngineOptions(dtype="float32", graphs=False))


class Listener:
    """Submits requests and keeps what they give."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.heard: dict[str, list[EngineOutput]] = {}

    def say(self, name: str, codes: list[list[int]]) -> None:
        meta = MediaItem(index=0, key=str(codes), batch_key=0, length=len(codes))
        inputs = {"coder": [Payload(meta, {"codes": torch.tensor(codes)})]}
        outputs = self.heard.setdefault(name, [])
        self.engine.submit(EngineRequest(name, frozenset({"audio"}), inputs), outputs.append)

    def run(self, device: Device, ticks: int = 1000) -> None:
        """As the engine's thread does, for `ticks` rounds or to the end of all requests."""
        with torch.inference_mode():
            while ticks and not self.engine.idle:
                ticks -= 1
                self.engine.tick()
                device.synchronize()

    def expect(self, name: str, codes: list[list[int]]) -> None:
        """The whole wave of the codes, then the ends."""
        chunks = [
            o.meta.samples for o in self.heard[name] if isinstance(o, StageOutput) and isinstance(o.meta, AudioChunk)
        ]
        whole = whole_wave(WaveMaker(), (np.array(codes) + 1).tolist())
        np.testing.assert_allclose(np.concatenate(chunks), whole, rtol=1e-6)
        assert len(chunks) > 1
        *_, finished, last = self.heard[name]
        assert finished == StageFinished("voice", "stop", {"frames": len(codes), "samples": len(whole)})
        assert last == RequestFinished()


def codes_of(count: int, seed: int) -> list[list[int]]:
    values: list[list[int]] = np.random.default_rng(seed).integers(0, 50, (count, 2)).tolist()
    return values


@pytest.mark.plants_faults
@pytest.mark.parametrize("make_device", [CpuDevice, QueuedDevice, pytest.param(CudaDevice, marks=pytest.mark.gpu)])
def test_many_requests_one_bad_one_aborted(make_device: type[Device], tmp_path: Path) -> None:
    device = make_device()
    listener = Listener(build(device, tmp_path))
    codes = {f"r{n}": codes_of(4 + 3 * n, n) for n in range(5)}
    for name, rows in codes.items():
        listener.say(name, rows)
    listener.say("same as r4", codes["r4"])
    listener.say("gone", codes_of(40, 9))
    if not isinstance(
        device, QueuedDevice
    ):  # there a phase does not run where it is launched, so it cannot raise there
        listener.say("bad", [[-1, 0]])
    listener.run(device, ticks=4)
    listener.engine.abort("gone", OmniError("the user left"))
    listener.run(device)
    for name, rows in codes.items():
        listener.expect(name, rows)
    listener.expect("same as r4", codes["r4"])
    assert listener.engine.idle
    assert isinstance(listener.heard["gone"][-1], RequestFailed)
    if "bad" in listener.heard:
        (failed,) = listener.heard["bad"]
        assert isinstance(failed, RequestFailed)
        assert "stage 'coder' failed while encoding its media" in str(failed.error)
    listener.engine.close()


def test_device_memory_is_touched_in_phases_only(tmp_path: Path) -> None:
    device = CpuDevice()
    with LaunchGuard(device), pytest.raises(AssertionError, match="outside a phase"):
        torch.ones(2).sum()  # the guard is awake
    listener = Listener(build(device, tmp_path))
    codes = codes_of(20, 1)
    listener.say("a", codes)
    with LaunchGuard(device) as guard:
        listener.run(device)
    listener.expect("a", codes)
    phases = {"copy_upload", "decode_frames", "download_samples", "encode_batch", "reset_rows", "copy_rows"}
    assert phases <= guard.launched


@pytest.mark.parametrize("stage", ["coder", "wavemaker"])
def test_a_factory_of_the_wrong_thing_is_named(stage: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"pipeline\.stages\.(coder|voice)\.model: gave a object; kind '\w+' takes an ",
    ):
        build(CpuDevice(), tmp_path, voice_pipeline(**{stage: "build_nothing"}))
