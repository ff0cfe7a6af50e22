"""What a diffusion stage takes besides `omni_frames.CodeFrames`. It gives `omni.payload.AudioChunk`."""

import msgspec


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """Input: who speaks. One of a request; nothing is denoised before it came.

    index: 0 to the model's `num_voices` - 1. The payload may have a tensor `noise`, float32 in host memory, `[T, M]`: what the
    request's latent frames begin as, instead of noise drawn from its seed.
    """

    index: int
