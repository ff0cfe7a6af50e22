"""Inputs of stages that read code frames."""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Event
from omni.payload import PageSlice
from omni.stage import Feed


class CodeFrames(msgspec.Struct, frozen=True, kw_only=True):
    """Input: the next `count` codec frames of a request. The payload's tensor `codes`, int64, is a page slice of `count` rows of G
    code groups, or a tensor `[count, G]`. codes: int64 `[count, G]`, for codes that the host knows; the payload then has no tensor.
    """

    count: int
    codes: NDArray[np.int64] | None = None


@dataclass(slots=True, eq=False)
class Arrival:
    """Arrived frames that are not all copied yet. taken: number of copied ones. after: end of the last copy that reads them."""

    message: Feed
    codes: PageSlice | Tensor | NDArray[np.int64]
    count: int
    taken: int = 0
    after: Event = COMPLETED

    def release(self) -> None:
        self.message.release(self.after)


def read_arrival(message: Feed, groups: int) -> Arrival:
    """The frames of an input. groups: codes per frame. Raises ValueError for any other input."""
    meta, known = message.payload.meta, message.payload.tensors.get("codes")
    codes = meta.codes if isinstance(meta, CodeFrames) and meta.codes is not None else known
    if not isinstance(meta, CodeFrames) or codes is None:
        raise ValueError(f"CodeFrames with a tensor 'codes' are taken, not {meta!r}")
    dtype, shape = str(codes.dtype).removeprefix("torch."), list(codes.shape)
    if dtype != "int64" or shape != [meta.count, groups]:
        wanted = f"{meta.count} int64 frames of {groups} code groups"
        raise ValueError(f"codes are {dtype} {shape}; wanted {wanted}")
    return Arrival(message, codes, meta.count)
