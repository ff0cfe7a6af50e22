"""Codec codes to sound: a diffusion transformer makes a mel spectrogram of them, in blocks, BigVGAN a waveform of that."""

from omni_qwen2_5_omni.token2wav.model import Token2Wav, build

__all__ = ["Token2Wav", "build"]
