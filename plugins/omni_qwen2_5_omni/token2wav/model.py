"""The two halves of token2wav as a diffusion stage's model. Shape legend as in `omni_diffusion.model` and its `layers`."""

from collections.abc import Mapping
from typing import Any

import torch

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_diffusion.layers import BlockDiffusion
from omni_diffusion.options import DiffusionOptions
from omni_qwen2_5_omni.config import read_config
from omni_qwen2_5_omni.token2wav.bigvgan import BigVGAN
from omni_qwen2_5_omni.token2wav.dit import DiT
from omni_qwen2_5_omni.voices import VoiceReference, read_voices

_STEPS = 9
_GUIDANCE = 0.5


class Token2Wav(BlockDiffusion):
    """The model of the stage. config: transformers' `Qwen2_5OmniToken2WavConfig`."""

    net: DiT

    def __init__(
        self, config: Any, *, num_steps: int = _STEPS, guidance: float = _GUIDANCE, remembers: bool = True
    ) -> None:
        net, renderer = DiT(config.dit_config, guidance), BigVGAN(config.bigvgan_config)
        super().__init__(net, renderer, num_groups=1, sample_rate=24000, num_steps=num_steps, remembers=remembers)

    @torch.no_grad()
    def prepare(self, voices: Mapping[str, VoiceReference]) -> None:
        """Called once, after the weights are loaded."""
        like = self.net.input_embed.proj.weight
        each = [self.net.voice(voice.speaker_V.to(like), voice.reference_TM.to(like)) for voice in voices.values()]
        self.ready(torch.stack(each))


def build(context: StageContext) -> Token2Wav:
    """The checkpoint's model on the context's device. BigVGAN is in float32: its rounding is audible."""
    options = context.options
    assert isinstance(options, DiffusionOptions)
    with torch.device(context.device.torch_device):
        model = Token2Wav(
            read_config(context.checkpoint).hf.token2wav_config,
            num_steps=_STEPS if options.num_steps is None else options.num_steps,
            guidance=_GUIDANCE if options.guidance is None else options.guidance,
            # Context replaces state: see `DiffusionOptions.blocks_before`.
            remembers=options.blocks_before == 0,
        )
    model.net.to(context.dtype)
    load_weights(
        model,
        context,
        {"token2wav.code2wav_dit_model.": "net.", "token2wav.code2wav_bigvgan_model.": "renderer."},
    )
    model.prepare(read_voices(context.checkpoint))
    return model
