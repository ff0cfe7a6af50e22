"""What travels between stages: named tensors that stay where they were made, and one small struct that describes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PageSlice:
    """Rows of a paged buffer, not yet gathered.

    pages: `[num_blocks, block_size, width]`, on the producer's device, still being written elsewhere.
    slots: int64 `[n]`, flat row numbers (`block * block_size + offset`), in the order the consumer wants them.

    A reference lives for one gather: the consumer copies the rows when the payload's event has fired and releases it.
    """

    pages: torch.Tensor
    slots: NDArray[np.int64]

    def rows(self, slots_n: torch.Tensor) -> torch.Tensor:
        """The rows `[n, width]` at `slots_n` (the slots, as an int64 tensor on the pages' device)."""
        return self.pages.flatten(0, 1).index_select(0, slots_n)


@dataclass(frozen=True, slots=True)
class Payload:
    """One message on an edge.

    meta: says what this is; a stage kind's inputs and outputs are such structs, and adapters dispatch on their type.
    tensors: device data by name. Empty for a payload that is all on the host (tokens, finished audio).
    """

    meta: msgspec.Struct
    tensors: Mapping[str, torch.Tensor | PageSlice] = field(default_factory=dict)
