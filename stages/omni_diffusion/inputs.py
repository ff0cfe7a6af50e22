"""Inputs of a diffusion stage besides `omni_frames.CodeFrames`. Its output is `omni.payload.AudioChunk`."""

import msgspec


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """Input: the voice of the speech. One per request; denoising starts after its arrival.

    index: 0 to the model's `num_voices` - 1. The payload may have a tensor `noise`, float32 in host memory, `[T, M]`:
    the initial latents of the request, instead of noise drawn from its seed.
    """

    index: int
