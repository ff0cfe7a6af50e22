"""A denoiser in the real engine and the memory it takes; errors of encoders, vocoders and denoisers for a wrong factory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omni.checkpoint import Checkpoint
from omni.device import Device, SyncCheck, sync_guard
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.engine import EngineRequest
from omni.errors import ConfigError
from omni.payload import Payload
from omni.pipeline import Stage
from omni.sampling import SamplingParams
from omni.stage import StageContext
from omni.testing.engines import GIVEN_UP, TickedEngine
from omni.testing.simulation.late import QueuedDevice
from omni_diffusion.inputs import Voice
from omni_diffusion.kind import DiffusionStageKind, LoadedDiffusion
from omni_encoder.kind import EncoderStageKind
from omni_encoder.options import EncoderOptions
from omni_frames.request import CodeFrames
from omni_vocoder.kind import VocoderStageKind
from omni_vocoder.options import VocoderOptions
from tests.support.frame_bench import random_codes
from tests.support.omni_engine import Result
from tests.support.painter import (
    OPTIONS,
    PAINT,
    Painter,
    drawn,
    paint_pipeline,
    paint_plugins,
    painted,
    samples_of,
    spans,
)

DEVICES = [CpuDevice, QueuedDevice, pytest.param(CudaDevice, marks=pytest.mark.gpu)]


def submit(engine: TickedEngine, name: str, codes: NDArray[np.int64], voice: int = 1) -> Result:
    """A request's seed is the number of its codes."""
    frames, result = torch.from_numpy(codes), Result()
    frames = frames.pin_memory() if engine.device.torch_device.type == "cuda" else frames
    inputs = [Payload(Voice(index=voice)), Payload(CodeFrames(count=len(codes)), {"codes": frames})]
    sampling = {PAINT: SamplingParams(seed=len(codes))}
    engine.engine.submit(EngineRequest(name, frozenset({"audio"}), {PAINT: inputs}, sampling=sampling), result.take)
    return result


def tick(engine: TickedEngine) -> None:
    engine.tick()
    if isinstance(engine.device, QueuedDevice):
        with torch.inference_mode():
            engine.device.synchronize()


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("make_device", DEVICES)
def test_requests_of_a_denoiser_beside_one_given_up(
    make_device: Callable[[], Device], graphs: bool, tmp_path: Path
) -> None:
    """Many requests, one given up, and one whose voice is not there."""
    (tmp_path / "config.json").write_text('{"model_type": "paint"}')
    engine = TickedEngine(tmp_path, paint_plugins(), device=make_device(), graphs=graphs)
    check = SyncCheck.OFF if isinstance(engine.device, QueuedDevice) else SyncCheck.ERROR
    codes = {f"r{n}": random_codes(4 + 5 * n, n) for n in range(5)} | {"same as r4": random_codes(24, 4)}
    with sync_guard(engine.device, check):
        bad = submit(engine, "bad", random_codes(5, 9), voice=77)
        results = {name: submit(engine, name, rows) for name, rows in codes.items()}
        gone = submit(engine, "gone", random_codes(40, 9))
        for _ in range(4):
            tick(engine)
        engine.leave("gone")
        while not engine.engine.idle:
            tick(engine)
    for name, rows in codes.items():
        latents_TM = painted(rows, 1, drawn(len(rows), len(rows)), spans(len(rows), OPTIONS))
        wave = samples_of(latents_TM, Painter().context)
        np.testing.assert_allclose(results[name].wave, wave, rtol=1e-4, atol=1e-5)
        assert results[name].stages[PAINT].counts == {"frames": len(rows), "samples": len(wave)}
        assert results[name].reasons == {PAINT: "stop"}
    assert gone.error is GIVEN_UP
    assert "voice 77 is out of range" in str(bad.error)
    assert not bad.log
    engine.assert_free()
    engine.engine.close()


def context_of(folder: Path, stage: Stage, **changes: Any) -> StageContext:
    (folder / "config.json").write_text("{}")
    return StageContext(
        stage=stage,
        options=stage.options,
        checkpoint=Checkpoint(folder),
        device=CpuDevice(),
        dtype=torch.float32,
        load_format="auto",
        **changes,
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [(EncoderStageKind(), EncoderOptions()), (VocoderStageKind(), VocoderOptions()), (DiffusionStageKind(), OPTIONS)],
    ids=["encoder", "vocoder", "diffusion"],
)
def test_a_factory_of_the_wrong_thing_is_named(kind: Any, options: Any, tmp_path: Path) -> None:
    stage = Stage(name="it", kind=kind.name, model="tests.support.painter:build_nothing", options=options)
    problem = rf"pipeline\.stages\.it\.model: gave a object \(.*\); kind '{kind.name}' takes an "
    with pytest.raises(ConfigError, match=problem):
        kind.load(context_of(tmp_path, stage))


@pytest.mark.parametrize("graphs", [False, True])
def test_a_denoiser_is_measured_on_its_largest_batches(graphs: bool, tmp_path: Path) -> None:
    model = Painter()
    loaded = LoadedDiffusion(context_of(tmp_path, paint_pipeline().stages[0], graphs=graphs), model)
    assert loaded.footprint.weights == model.weights.nbytes
    latents = (1 + 2 + 1) * model.block_frames * model.repeats
    assert loaded.footprint.fixed > (loaded.rows + 1) * latents * model.latent_width * 4
    assert loaded.measure() > 0
    assert (3, latents) in {(rows, length) for rows, length, _ in model.steps}
    most_fresh = (2 + 1) * model.block_frames * model.repeats
    assert (3, most_fresh + 2 * model.context) in model.parts
    worker = loaded.start(0)
    assert not any(worker.usage().values())
    assert not any(worker.counters().values())
