"""Reads who speaks."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.stage import Feed
from omni_diffusion.inputs import Voice


def read_voice(meta: Voice, message: Feed, voices: int, width: int) -> NDArray[np.float32] | None:
    """The noise that came along, if any did. voices: how many there are. width: values of a latent frame.

    Raises ValueError, which says what was wanted, for a voice that is not there and for noise that is none.
    """
    if not 0 <= meta.index < voices:
        raise ValueError(f"voice {meta.index} is not there: 0 to {voices - 1} are")
    noise = message.payload.tensors.get("noise")
    if noise is None:
        return None
    if not isinstance(noise, Tensor) or noise.device.type != "cpu" or not message.arrived:
        raise ValueError("noise is read by the host: give a tensor in its memory")
    if noise.dtype != torch.float32 or noise.dim() != 2 or noise.shape[1] != width:
        raise ValueError(f"noise is {noise.dtype} {tuple(noise.shape)}; wanted float32 [latent frames, {width}]")
    return np.array(noise.numpy())
