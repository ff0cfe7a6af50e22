"""Checks of a `Voice` input and its optional noise."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.stage import Feed
from omni_diffusion.inputs import Voice


def check_voice(voice: Voice, voices: int) -> None:
    """voices: number of voices. Raises ValueError, which names that number, for a voice that does not exist."""
    if not 0 <= voice.index < voices:
        raise ValueError(f"voice {voice.index} is not there: 0 to {voices - 1} are")


def noise_given(message: Feed, width: int) -> NDArray[np.float32] | None:
    """The noise of a voice's message, `[T, M]`, or None. width: M, values of a latent frame.

    Raises ValueError, which describes the expected tensor, for any other tensor.
    """
    noise = message.payload.tensors.get("noise")
    if noise is None:
        return None
    if not isinstance(noise, Tensor) or noise.device.type != "cpu" or not message.arrived:
        raise ValueError("noise is read by the host: give a tensor in its memory")
    if noise.dtype != torch.float32 or noise.dim() != 2 or noise.shape[1] != width:
        raise ValueError(f"noise is {noise.dtype} {tuple(noise.shape)}; wanted float32 [latent frames, {width}]")
    return np.array(noise.numpy())
