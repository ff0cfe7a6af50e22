"""The diffusion kind in the real engine: registered, measured, captured, seeded by request."""

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
from omni.errors import ConfigError, OmniError
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.stage import StageContext
from omni_diffusion.inputs import Voice
from omni_diffusion.kind import LoadedDiffusion
from omni_frames import CodeFrames
from tests.support.devices import QueuedDevice
from tests.support.frame_bench import Listener, random_codes
from tests.support.painter import OPTIONS, PAINT, Painter, drawn, heard, paint_pipeline, paint_plugins, painted, spans


class Speaker(Listener):
    def say(self, name: str, codes: NDArray[np.int64], seed: int, voice: int = 1) -> None:
        frames = torch.from_numpy(codes)
        frames = frames.pin_memory() if self.device.torch_device.type == "cuda" else frames
        inputs = [Payload(Voice(index=voice)), Payload(CodeFrames(count=len(codes)), {"codes": frames})]
        self.submit(name, {PAINT: inputs}, {PAINT: SamplingParams(seed=seed)})

    def expect(self, name: str, codes: NDArray[np.int64], seed: int, voice: int = 1) -> None:
        latents_TM = painted(codes, voice, drawn(seed, len(codes)), spans(len(codes), OPTIONS))
        self.expect_wave(name, PAINT, len(codes), heard(latents_TM, Painter().context), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("make_device", [CpuDevice, QueuedDevice, pytest.param(CudaDevice, marks=pytest.mark.gpu)])
def test_many_requests_one_bad_one_aborted(make_device: Callable[[], Device], graphs: bool, tmp_path: Path) -> None:
    device = make_device()
    listener = Speaker(device, tmp_path, paint_pipeline(), paint_plugins(), graphs)
    codes = {f"r{n}": random_codes(4 + 5 * n, n) for n in range(5)}
    with sync_guard(device, SyncCheck.OFF if isinstance(device, QueuedDevice) else SyncCheck.ERROR):
        for seed, (name, rows) in enumerate(codes.items()):
            listener.say(name, rows, seed)
        listener.say("gone", random_codes(40, 9), 1)
        listener.say("bad", random_codes(5, 9), 1, voice=77)
        listener.run(ticks=4)
        listener.engine.abort("gone", OmniError("the user left"))
        listener.run()
    for seed, (name, rows) in enumerate(codes.items()):
        listener.expect(name, rows, seed)
    assert listener.engine.idle
    assert listener.error("gone") == "the user left"
    assert len(listener.heard["bad"]) == 1
    assert "voice 77 is not there" in listener.error("bad")
    listener.engine.close()


def test_a_factory_of_the_wrong_thing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.stages\.paint\.model: gave a object; kind 'diffusion' takes an "):
        Speaker(CpuDevice(), tmp_path, paint_pipeline("build_nothing"), paint_plugins())


@pytest.mark.parametrize("graphs", [False, True])
def test_it_is_measured_on_its_largest_batches(graphs: bool, tmp_path: Path) -> None:
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
