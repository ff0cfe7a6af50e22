"""Initial noise of latents: the same on every device, in every batch, for every division of a stream into windows."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.stage import Feed
from omni_diffusion.windows import Window


class Noise:
    """The noise of one stream. A block's noise is a function of seed, sample index and the block's number alone. given: `[T, M]`,
    used instead. block, repeats, width: code frames of a block, latent frames of a code frame, values of a latent frame."""

    def __init__(
        self,
        seed: int,
        sample_index: int,
        block: int,
        repeats: int,
        width: int,
        given: NDArray[np.float32] | None = None,
    ) -> None:
        self._seed, self._sample_index = seed, sample_index
        self._block, self._repeats, self._width = block, repeats, width
        self._given = given
        self._drawn: dict[int, NDArray[np.float32]] = {}
        """Noise of the last window, whose blocks may be in the next one too."""

    def of(self, window: Window) -> NDArray[np.float32]:
        """The window's noise, `[frames * repeats, M]`. Raises ValueError if the given noise is too short."""
        start, count = window.first * self._repeats, window.frames * self._repeats
        if self._given is not None:
            if len(self._given) < start + count:
                problem = f"noise is for {len(self._given)} latent frames, the codes are for {start + count} or more"
                raise ValueError(problem)
            return self._given[start : start + count]
        first = window.first // self._block
        numbers = range(first, first + -(-window.frames // self._block))
        self._drawn = {n: self._drawn[n] if n in self._drawn else self._draw(n) for n in numbers}
        return np.concatenate([self._drawn[n] for n in numbers])[:count]

    def _draw(self, number: int) -> NDArray[np.float32]:
        key, counter = np.array([self._seed, number], np.uint64), np.array([0, 0, 0, self._sample_index], np.uint64)
        random = np.random.Generator(np.random.Philox(key=key, counter=counter))
        return random.standard_normal((self._block * self._repeats, self._width), np.float32)


def read_noise(message: Feed, width: int) -> NDArray[np.float32] | None:
    """The noise of a voice's message, `[T, M]`, or None. width: M. Raises ValueError, which describes the expected tensor, for
    another one."""
    noise = message.payload.tensors.get("noise")
    if noise is None:
        return None
    if not isinstance(noise, Tensor) or noise.device.type != "cpu" or not message.arrived:
        raise ValueError("noise is read by the host: give a tensor in its memory")
    if noise.dtype != torch.float32 or noise.dim() != 2 or noise.shape[1] != width:
        raise ValueError(f"noise is {noise.dtype} {tuple(noise.shape)}; wanted float32 [latent frames, {width}]")
    return np.array(noise.numpy())
