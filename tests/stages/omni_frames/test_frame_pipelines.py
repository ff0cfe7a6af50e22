"""Stages of three kinds and the local connector in the real engine: front end -> encoder -> vocoder, and a denoiser."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omni.checkpoint import Checkpoint
from omni.device import Device, SyncCheck, sync_guard
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.engine import StageOutput
from omni.errors import ConfigError, OmniError
from omni.payload import Payload
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams
from omni.stage import StageContext
from omni_diffusion.inputs import Voice
from omni_diffusion.kind import LoadedDiffusion
from omni_encoder.inputs import MediaItem
from omni_frames.request import CodeFrames
from tests.support.devices import QueuedDevice
from tests.support.frame_bench import Listener, random_codes
from tests.support.painter import OPTIONS, PAINT, Painter, drawn, heard, paint_pipeline, paint_plugins, painted, spans
from tests.support.wavemaker import WaveMaker, builtin_plugins, voice_pipeline, whole_wave

DEVICES = [CpuDevice, QueuedDevice, pytest.param(CudaDevice, marks=pytest.mark.gpu)]
each_device = pytest.mark.parametrize("make_device", DEVICES)


class VocoderListener(Listener):
    def __init__(self, device: Device, folder: Path, pipeline: Pipeline) -> None:
        super().__init__(device, folder, pipeline, builtin_plugins())

    def say(self, name: str, codes: NDArray[np.int64]) -> None:
        meta = MediaItem(index=0, key=str(codes), batch_key=0, length=len(codes))
        self.submit(name, {"coder": [Payload(meta, {"codes": torch.from_numpy(codes)})]})

    def expect(self, name: str, codes: NDArray[np.int64]) -> None:
        self.expect_wave(name, "voice", len(codes), whole_wave(WaveMaker(), (codes + 1).tolist()), rtol=1e-6)
        assert sum(isinstance(output, StageOutput) for output in self.heard[name]) > 1


class DiffusionListener(Listener):
    """A request's seed is the number of its codes."""

    def __init__(self, device: Device, folder: Path, pipeline: Pipeline, graphs: bool = False) -> None:
        super().__init__(device, folder, pipeline, paint_plugins(), graphs)

    def say(self, name: str, codes: NDArray[np.int64], voice: int = 1) -> None:
        frames = torch.from_numpy(codes)
        frames = frames.pin_memory() if self.device.torch_device.type == "cuda" else frames
        inputs = [Payload(Voice(index=voice)), Payload(CodeFrames(count=len(codes)), {"codes": frames})]
        self.submit(name, {PAINT: inputs}, {PAINT: SamplingParams(seed=len(codes))})

    def expect(self, name: str, codes: NDArray[np.int64]) -> None:
        latents_TM = painted(codes, 1, drawn(len(codes), len(codes)), spans(len(codes), OPTIONS))
        self.expect_wave(name, PAINT, len(codes), heard(latents_TM, Painter().context), rtol=1e-4, atol=1e-5)


def play(listener: VocoderListener | DiffusionListener, bad: str | None) -> None:
    """Many requests, one aborted, and perhaps one that has been submitted as "bad", with this in its error."""
    codes = {f"r{n}": random_codes(4 + 5 * n, n) for n in range(5)} | {"same as r4": random_codes(24, 4)}
    for name, rows in codes.items():
        listener.say(name, rows)
    listener.say("gone", random_codes(40, 9))
    listener.run(ticks=4)
    listener.engine.abort("gone", OmniError("the user left"))
    listener.run()
    for name, rows in codes.items():
        listener.expect(name, rows)
    assert listener.engine.idle
    assert listener.error("gone") == "the user left"
    if bad is not None:
        assert len(listener.heard["bad"]) == 1
        assert bad in listener.error("bad")
    listener.engine.close()


@pytest.mark.plants_faults
@each_device
def test_an_encoder_and_a_vocoder(make_device: Callable[[], Device], tmp_path: Path) -> None:
    listener = VocoderListener(make_device(), tmp_path, voice_pipeline())
    if isinstance(listener.device, QueuedDevice):
        play(listener, None)  # a phase does not run where it is launched, so it cannot raise there
    else:
        listener.say("bad", np.array([[-1, 0]]))
        play(listener, "stage 'coder' failed while encoding its media")


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@each_device
def test_a_denoiser(make_device: Callable[[], Device], graphs: bool, tmp_path: Path) -> None:
    listener = DiffusionListener(make_device(), tmp_path, paint_pipeline(), graphs)
    check = SyncCheck.OFF if isinstance(listener.device, QueuedDevice) else SyncCheck.ERROR
    with sync_guard(listener.device, check):
        listener.say("bad", random_codes(5, 9), voice=77)
        play(listener, "voice 77 is out of range")


@pytest.mark.parametrize(
    ("make", "pipeline", "stage", "kind"),
    [
        (VocoderListener, voice_pipeline(coder="build_nothing"), "coder", "encoder"),
        (VocoderListener, voice_pipeline(wavemaker="build_nothing"), "voice", "vocoder"),
        (DiffusionListener, paint_pipeline("build_nothing"), "paint", "diffusion"),
    ],
)
def test_a_factory_of_the_wrong_thing_is_named(
    make: Callable[[Device, Path, Pipeline], Listener], pipeline: Pipeline, stage: str, kind: str, tmp_path: Path
) -> None:
    problem = rf"pipeline\.stages\.{stage}\.model: gave a object; kind '{kind}' takes an "
    with pytest.raises(ConfigError, match=problem):
        make(CpuDevice(), tmp_path, pipeline)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_denoiser_is_measured_on_its_largest_batches(graphs: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    stage, model = paint_pipeline().stages[0], Painter()
    context = StageContext(stage, OPTIONS, Checkpoint(tmp_path), CpuDevice(), torch.float32, "auto", graphs=graphs)
    loaded = LoadedDiffusion(context, model)
    assert loaded.footprint.weights == model.weights.nbytes
    latents = (1 + 2 + 1) * model.block_frames * model.repeats
    assert loaded.footprint.fixed > (OPTIONS.max_num_seqs + 1) * latents * model.latent_width * 4
    assert loaded.measure() > 0
    assert (3, latents) in {(rows, length) for rows, length, _ in model.steps}
    most_fresh = (2 + 1) * model.block_frames * model.repeats
    assert (3, most_fresh + 2 * model.context) in model.pieces
    worker = loaded.start(0)
    assert not any(worker.usage().values())
    assert not any(worker.counters().values())
