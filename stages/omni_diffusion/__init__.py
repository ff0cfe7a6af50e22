"""Stage kind `"diffusion"`: codes in, a waveform out, by denoising latents in windows of blocks."""
