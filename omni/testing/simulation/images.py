"""Images of host slots at the launch of phases that use them: from then on the host must not write there."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.testing.simulation.shadow import key_of


@dataclass(frozen=True, slots=True)
class Image:
    """A slot's bytes at a launch. version: the slot's version then."""

    tensor: Tensor
    version: int
    content: NDArray[np.uint8]


class SlotImages:
    """Host slots that were handed out. The host writes them through numpy, without a torch operation; a comparison of
    contents when the phase runs detects such writes.

    A slot's version counts the legal changes: handing it out again, and phases that write it.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def handed_out(self, key: int) -> None:
        self._versions[key] = self._versions.get(key, 0) + 1

    def written(self, key: int) -> None:
        """Records a phase's write. A no-op if the key is not a slot's."""
        if key in self._versions:
            self._versions[key] += 1

    def gone(self, key: int) -> None:
        self._versions.pop(key, None)

    def take(self, buffers: Iterable[object]) -> list[Image]:
        """Images of the slots among a launch's buffers."""
        images: list[Image] = []
        if self._versions:
            for buffer in buffers:
                version = self._versions.get(key_of(buffer)) if isinstance(buffer, Tensor) else None
                if version is not None:
                    assert isinstance(buffer, Tensor)
                    images.append(Image(buffer, version, _bytes(buffer).copy()))
        return images

    def changed(self, image: Image) -> int | None:
        """The first byte that the host changed illegally since the image; None if there is none."""
        if self._versions.get(key_of(image.tensor)) != image.version:
            return None
        places = np.flatnonzero(_bytes(image.tensor) != image.content)
        return int(places[0]) if places.size else None


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    numbers: NDArray[np.uint8] = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return numbers
