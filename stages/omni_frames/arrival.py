"""Frames that came, and are not all copied yet."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Event
from omni.payload import PageSlice
from omni.stage import Feed, release
from omni_frames.inputs import CodeFrames


@dataclass(slots=True, eq=False)
class Arrival:
    """taken: how many of its frames are copied. after: the last copy that reads them."""

    message: Feed
    codes: PageSlice | Tensor | NDArray[np.int64]
    count: int
    taken: int = 0
    after: Event = COMPLETED

    def let_go(self) -> None:
        release(self.message, self.after)


def read_arrival(message: Feed, groups: int) -> Arrival:
    """The frames of an input. groups: codes per frame. Raises ValueError, which says what was wanted, for anything else."""
    meta, known = message.payload.meta, message.payload.tensors.get("codes")
    codes = meta.codes if isinstance(meta, CodeFrames) and meta.codes is not None else known
    if not isinstance(meta, CodeFrames) or codes is None:
        raise ValueError(f"CodeFrames with a tensor 'codes' are taken, not {meta!r}")
    pages = codes.pages if isinstance(codes, PageSlice) else codes
    dtype = str(pages.dtype).removeprefix("torch.")
    shape = [len(codes.slots), pages.shape[-1]] if isinstance(codes, PageSlice) else list(codes.shape)
    if dtype != "int64" or shape != [meta.count, groups]:
        wanted = f"{meta.count} int64 frames of {groups} code groups"
        raise ValueError(f"codes are {dtype} {shape}; wanted {wanted}")
    return Arrival(message, codes, meta.count)
