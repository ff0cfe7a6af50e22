"""Both halves as a diffusion stage's model. Shape legend as in `omni_diffusion.model` and its `layers`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_diffusion.layers import BlockState, RungeKutta
from omni_diffusion.model import DiffusionModel, Windows
from omni_diffusion.options import DiffusionOptions
from omni_qwen2_5_omni.config import read_config
from omni_qwen2_5_omni.token2wav.bigvgan import BigVGAN
from omni_qwen2_5_omni.token2wav.dit import DiT
from omni_qwen2_5_omni.voices import VoiceReference, read_voices

_STEPS = 9
_GUIDANCE = 0.5


class Token2Wav(DiffusionModel[BlockState]):
    """Parameters are named as published. config: transformers' `Qwen2_5OmniToken2WavConfig`.

    remembers: whether a window goes on from the one before, if it has no context of its own: nothing is denoised twice, and what
    lies before a window is exact.
    """

    num_groups = 1
    sample_rate = 24000

    def __init__(
        self, config: Any, *, num_steps: int = _STEPS, guidance: float = _GUIDANCE, remembers: bool = True
    ) -> None:
        super().__init__()
        self.code2wav_dit_model = DiT(config.dit_config, guidance)
        self.code2wav_bigvgan_model = BigVGAN(config.bigvgan_config)
        self._config = config.dit_config
        self._num_steps = num_steps
        self._remembers = remembers
        self._schedule = RungeKutta(num_steps)
        self._voices_NGV = nn.Buffer(torch.empty(0), persistent=False)

    @property
    def num_voices(self) -> int:
        return len(self._voices_NGV)

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def block_frames(self) -> int:
        return int(self._config.block_size // self._config.repeats)

    @property
    def repeats(self) -> int:
        return int(self._config.repeats)

    @property
    def latent_width(self) -> int:
        return int(self._config.mel_dim)

    @property
    def samples_per_latent(self) -> int:
        return int(self.code2wav_bigvgan_model.samples_per_frame)

    @property
    def render_context(self) -> int:
        return self.code2wav_bigvgan_model.context

    @torch.no_grad()
    def prepare(self, voices: Mapping[str, VoiceReference]) -> None:
        """What is the same for all requests: the times, and the voices, in their order. Once, with the weights loaded."""
        weight, dit = self.code2wav_dit_model.proj_out.weight, self.code2wav_dit_model
        self._schedule = RungeKutta(self._num_steps, device=weight.device)
        dit.prepare(self._schedule.times_E)
        each = [dit.voice(voice.speaker_V.to(weight), voice.reference_TM.to(weight)) for voice in voices.values()]
        self._voices_NGV = nn.Buffer(torch.stack(each), persistent=False)

    def new_state(self, num_rows: int, window_frames: int) -> BlockState:
        dit, weight = self.code2wav_dit_model, self.code2wav_dit_model.proj_out.weight
        shape = (num_rows, dit.branches, window_frames * self.repeats, self._config.hidden_size)
        history = dit.history_shape(num_rows) if self._remembers else None
        return BlockState.allocate(shape, history, weight, dit.block_frames, self.repeats)

    def begin(self, state: BlockState, windows: Windows) -> None:
        voices_BGV = self._voices_NGV.index_select(0, windows.voices_B)
        # Control codes have no sound; who makes the talker go on past one (`ignore_eos`) hears some code's.
        codes_BN = windows.codes_BNG[:, :, 0].clamp(max=self._config.num_embeds)
        state.begin(self.code2wav_dit_model.condition(codes_BN, voices_BGV), windows)

    @torch.no_grad()
    def denoise(self, state: BlockState, latents_BTM: Tensor, rows_B: Tensor, steps_B: Tensor) -> Tensor:
        dit, window = self.code2wav_dit_model, state.window(rows_B, latents_BTM.shape[1])
        around = dit.surroundings(window)

        def velocity(noisy_BKFM: Tensor, evaluation_B: Tensor) -> Tensor:
            return dit.velocity(noisy_BKFM, evaluation_B, window, around)

        return self._schedule.advance(latents_BTM.unflatten(1, (-1, state.block)), steps_B, velocity).flatten(1, 2)

    @torch.no_grad()
    def render(self, latents_BTM: Tensor) -> Tensor:
        wave_BS: Tensor = self.code2wav_bigvgan_model(latents_BTM.transpose(1, 2))
        return wave_BS


def build(context: StageContext) -> Token2Wav:
    """The checkpoint's, on the context's device. BigVGAN is in float32: it is little work, and heard."""
    options = context.options
    assert isinstance(options, DiffusionOptions)
    with torch.device(context.device.torch_device):
        model = Token2Wav(
            read_config(context.checkpoint).hf.token2wav_config,
            num_steps=_STEPS if options.num_steps is None else options.num_steps,
            guidance=_GUIDANCE if options.guidance is None else options.guidance,
            remembers=options.blocks_before == 0,
        )
    model.code2wav_dit_model.to(context.dtype)
    load_weights(model, context, {"token2wav.": ""})
    model.prepare(read_voices(context.checkpoint))
    return model
