"""Codec codes to sound: a diffusion transformer generates a mel spectrogram in blocks, BigVGAN a waveform."""

from omni_qwen2_5_omni.token2wav.model import Token2Wav, build

__all__ = ["Token2Wav", "build"]
