"""Stage kind `"diffusion"`: codes in, a waveform out, by denoising latents in windows of blocks.

docs/public.md lists the public names; others may change in any version.
"""
