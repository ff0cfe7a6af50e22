"""Token2wav as config.json and the stage's options describe it, and in half precision."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device.cpu import CpuDevice
from omni.pipeline import Stage
from omni.stage import StageContext
from omni_diffusion.model import Windows
from omni_diffusion.options import DiffusionOptions
from omni_qwen2_5_omni.token2wav import Token2Wav, build
from tests.support.tiny_qwen2_5_omni import tiny_folder


def built(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Token2Wav:
    """As an engine on the CPU would build it."""
    given = DiffusionOptions(**options)
    stage = Stage(name="token2wav", kind="diffusion", model="unused:here", options=given)
    return build(
        StageContext(
            stage=stage,
            options=given,
            checkpoint=Checkpoint(folder),
            device=CpuDevice(),
            dtype=dtype,
            load_format="auto",
        )
    )


@torch.no_grad()
def sound(net: Token2Wav, codes_N: Tensor, noise_TM: Tensor) -> Tensor:
    """Samples `[S]`, of a window that holds everything."""
    count, row_1 = len(codes_N), torch.zeros(1, dtype=torch.int64)
    padded = -(-count // net.block_frames) * net.block_frames
    codes_BNG = torch.nn.functional.pad(codes_N, (0, padded - count))[None, :, None]
    latents_BTM = torch.nn.functional.pad(noise_TM, (0, 0, 0, (padded - count) * net.repeats))[None]
    state = net.new_state(2, padded)
    net.begin(state, Windows(row_1, row_1, row_1, row_1 + count, row_1 + count, row_1, codes_BNG))
    for step in range(net.num_steps):
        latents_BTM = net.denoise(state, latents_BTM, row_1, row_1 + step)
    return net.render(latents_BTM[:, : count * net.repeats])[0]


def test_the_model_follows_config_and_options() -> None:
    folder = tiny_folder(codec_stop_gain=0.0)
    net = built(folder, num_steps=4, guidance=0.0)
    assert (net.num_steps, net.net.branches, net.num_voices) == (4, 1, 2)
    assert (net.num_groups, net.sample_rate) == (1, 24000)
    assert (net.block_frames, net.repeats, net.latent_width, net.samples_per_latent) == (4, 2, 8, 20)
    assert built(folder, blocks_before=0).new_state(3, 8).history_RELX is not None
    assert built(folder, blocks_before=1).new_state(3, 8).history_RELX is None
    assert (built(folder).num_steps, built(folder).net.branches) == (9, 2)


def test_half_precision_is_near_and_its_vocoder_is_none() -> None:
    folder = tiny_folder(codec_stop_gain=0.0)
    half, full = built(folder, torch.bfloat16), built(folder)
    assert {parameter.dtype for parameter in half.net.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in half.renderer.parameters()} == {torch.float32}
    codes_N = torch.arange(17) * 7 % 40
    noise_TM = torch.randn(2 * 17, 8, generator=torch.Generator().manual_seed(1))
    made, expected = (sound(net, codes_N, noise_TM) for net in (half, full))
    assert made.isfinite().all()
    assert 0 < (made - expected).norm() < 0.1 * expected.norm()
