"""Diffusion transformers and BigVGANs of transformers with random weights under which every part is heard, and ours with the same.

Shape legend: B rows, M mel bins, N codes, T mel frames.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniBigVGANConfig,
    Qwen2_5OmniToken2WavConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
)

from omni.checkpoint import stacked_destinations
from omni_diffusion.model import Windows
from omni_qwen2_5_omni.token2wav import Token2Wav
from omni_qwen2_5_omni.token2wav.bigvgan import BigVGAN
from omni_qwen2_5_omni.voices import VoiceReference

SMALL_DIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "head_dim": 16,
    "emb_dim": 12,
    "mel_dim": 8,
    "block_size": 8,
    "look_ahead_layers": [2],
    "look_backward_layers": [0, 3],
    "num_embeds": 20,
    "enc_emb_dim": 6,
    "enc_dim": 10,
    "enc_channels": [8, 8, 8, 16],
    "enc_kernel_sizes": [5, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 1],
    "enc_attention_channels": 4,
    "enc_se_channels": 4,
}
SMALL_BIGVGAN: dict[str, Any] = {
    "mel_dim": 8,
    "upsample_initial_channel": 32,
    "upsample_rates": [5, 3, 2],
    "upsample_kernel_sizes": [11, 7, 4],
}


@torch.no_grad()
def enliven(model: nn.Module, seed: int, gain: float = 1.0) -> None:
    """Matrices that keep the scale of what they multiply, and biases and logarithms about zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
        parameter.copy_(noise * gain / fan_in**0.5)


@torch.no_grad()
def copy_weights(ours: nn.Module, published: dict[str, Tensor]) -> None:
    """As `load_weights` does from a checkpoint, every weight to its place and each place filled."""
    places, left = stacked_destinations(ours), dict(ours.named_parameters())
    for name, tensor in published.items():
        if name in places:
            left[places[name].parameter][places[name].index].copy_(tensor)
        else:
            left.pop(name).copy_(tensor)
    assert {name.rpartition(".")[0] for name in left} == {
        place.parameter.rpartition(".")[0] for place in places.values()
    }


@contextmanager
def noise_is(noise: Tensor) -> Iterator[None]:
    """Within, what transformers draws is `noise`."""

    def drawn(size: Sequence[int], **_: Any) -> Tensor:
        assert list(size) == list(noise.shape)
        return noise.clone()

    with patch("torch.randn", drawn):
        yield


@dataclass(frozen=True)
class DiTPair:
    """steps, guidance: of the solver, and of the branches. speaker_V, reference_TM: the first voice; the second is another.

    reference, vocoder: transformers' own.
    """

    ours: Token2Wav
    reference: Any
    vocoder: Any
    steps: int
    guidance: float
    speaker_V: Tensor
    reference_TM: Tensor

    @classmethod
    def of(
        cls, steps: int = 3, guidance: float = 0.5, remembers: bool = False, device: str = "cpu", **shape: Any
    ) -> "DiTPair":
        config = Qwen2_5OmniToken2WavConfig(dit_config=SMALL_DIT | shape, bigvgan_config=SMALL_BIGVGAN)
        reference = Qwen2_5OmniToken2WavDiTModel._from_config(config.dit_config, attn_implementation="sdpa").eval()
        enliven(reference, seed=1)
        ours = Token2Wav(config, num_steps=steps, guidance=guidance, remembers=remembers)
        copy_weights(ours.net, reference.state_dict())
        vocoder = bigvgan_pair()[1]
        copy_weights(ours.renderer, vocoder.state_dict())
        generator = torch.Generator().manual_seed(2)
        speaker_V = torch.randn(config.dit_config.enc_emb_dim, generator=generator)
        reference_TM = torch.randn(30, 8, generator=generator)
        voices = {
            "a": VoiceReference(0, speaker_V, reference_TM),
            "b": VoiceReference(0, -speaker_V, reference_TM.flip(1)),
        }
        ours.to(device).prepare(voices)
        return cls(ours, reference, vocoder, steps, guidance, speaker_V, reference_TM)

    def codes(self, count: int, seed: int = 0) -> Tensor:
        return torch.randint(20, (count,), generator=torch.Generator().manual_seed(seed))

    def noise(self, codes: int, seed: int = 0) -> Tensor:
        """`[frames, M]`."""
        return torch.randn((codes * self.ours.repeats, 8), generator=torch.Generator().manual_seed(seed + 100))

    @torch.no_grad()
    def expected(self, codes_N: Tensor, noise_TM: Tensor, voice: int = 0) -> Tensor:
        """What transformers makes of the noise, `[frames, M]`."""
        speaker_V, reference_TM = self.speaker_V, self.reference_TM
        if voice:
            speaker_V, reference_TM = -speaker_V, reference_TM.flip(1)
        with noise_is(noise_TM[None]):
            mel_1MT: Tensor = self.reference.sample(
                speaker_V[None],
                reference_TM[None],
                codes_N[None],
                num_steps=self.steps + 1,
                guidance_scale=self.guidance,
            )
        assert mel_1MT.std() > 0.3, "the reference is mute"
        return mel_1MT[0].T

    @torch.no_grad()
    def voiced(self, mel_TM: Tensor) -> Tensor:
        """transformers' waveform `[S]` of a spectrogram; neither silent nor clipped."""
        wave_S: Tensor = self.vocoder(mel_TM.T[None])
        assert 0.05 < wave_S.abs().max() < 0.95
        return wave_S


@dataclass
class Denoised:
    """A window. first, context, fresh: as in `omni_diffusion.model.Windows`. step: how many it has behind it."""

    row: int
    codes_N: Tensor
    latents_TM: Tensor
    first: int = 0
    context: int = 0
    fresh: int | None = None
    voice: int = 0
    step: int = 0


class Rows:
    """Windows of a model, as a stage runs them: in batches that are padded with the null row, to one length."""

    def __init__(self, pair: DiTPair, rows: int = 3, frames: int = 48) -> None:
        self.model, self._null, self._frames = pair.ours, rows, frames
        self._device = next(pair.ours.parameters()).device
        self.state = pair.ours.new_state(rows + 1, frames)

    @torch.no_grad()
    def begin(self, *windows: Denoised) -> None:
        lines = [
            (
                w.row,
                w.first,
                w.context,
                len(w.codes_N) - w.context if w.fresh is None else w.fresh,
                len(w.codes_N),
                w.voice,
            )
            for w in windows
        ]
        columns = torch.tensor([*lines, (self._null, 0, 0, 1, 1, 0)]).T
        codes_BNG = torch.zeros(len(lines) + 1, self._frames, 1, dtype=torch.int64)
        for line, window in zip(codes_BNG, windows, strict=False):
            line[: len(window.codes_N), 0] = window.codes_N
        self.model.begin(self.state, Windows(*columns.to(self._device), codes_BNG=codes_BNG.to(self._device)))

    def step(self, *windows: Denoised) -> None:
        """Each window a step on."""
        block, repeats = self.model.block_frames, self.model.repeats
        blocks = max(-(-len(window.codes_N) // block) for window in windows)
        latents_BTM = torch.zeros(len(windows) + 1, blocks * block * repeats, 8)
        for line, window in zip(latents_BTM, windows, strict=False):
            line[: len(window.latents_TM)] = window.latents_TM
        rows_B = torch.tensor([*(window.row for window in windows), self._null])
        steps_B = torch.tensor([*(window.step for window in windows), 0])
        given = (given.to(self._device) for given in (latents_BTM, rows_B, steps_B))
        out_BTM = self.model.denoise(self.state, *given)
        for line, window in zip(out_BTM.cpu(), windows, strict=False):
            # What pads a row is left as it comes out, as a stage leaves it.
            window.latents_TM, window.step = line, window.step + 1

    def finish(self, *windows: Denoised) -> list[Tensor]:
        """All steps that are left of each, together as long as there are any; the frames of each."""
        while left := [window for window in windows if window.step < self.model.num_steps]:
            self.step(*left)
        return [window.latents_TM[: len(window.codes_N) * self.model.repeats] for window in windows]

    def whole(self, codes_N: Tensor, noise_TM: Tensor, voice: int = 0) -> Tensor:
        window = Denoised(0, codes_N, noise_TM, voice=voice)
        self.begin(window)
        return self.finish(window)[0]


@torch.no_grad()
def bigvgan_pair(**shape: Any) -> tuple[BigVGAN, Any]:
    """Ours and transformers', whose waveform of `random_mel` peaks at about a half."""
    config = Qwen2_5OmniBigVGANConfig(**(SMALL_BIGVGAN | shape))
    reference = Qwen2_5OmniToken2WavBigVGANModel._from_config(config).eval()
    enliven(reference, seed=3, gain=0.8)
    reference.conv_post.weight.mul_(1e-3)
    reference.conv_post.weight.mul_(0.5 / reference(random_mel(60)).abs().max())
    ours = BigVGAN(config)
    copy_weights(ours, reference.state_dict())
    return ours, reference


def random_mel(frames: int, seed: int = 0) -> Tensor:
    """`[1, M, frames]`, of levels that are neither all below the floor nor all above the ceiling."""
    return 2 * torch.randn(1, 8, frames, generator=torch.Generator().manual_seed(seed)) - 3
