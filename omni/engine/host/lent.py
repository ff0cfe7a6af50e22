"""Pinned slots that consumers read payload from."""

from collections import deque

import torch
from torch import Tensor

from omni.device import COMPLETED, Device, Event


class LentSlots:
    """`count` pinned slots of `size` bytes. One is lent with a payload, from its copy to the release of its lease.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | a slot | the copy of a payload | the consumer, once the copy's event is done | the event given to `give_back` |

    The copy into a slot that is given back early may still be running: the next one into it follows on the same stream.
    """

    def __init__(self, device: Device, size: int, count: int) -> None:
        self.size = size
        self._back: deque[tuple[Tensor, Event]] = deque(
            (device.host_tensor((size,), torch.uint8), COMPLETED) for _ in range(count)
        )
        """Slots that are not lent, each with the end of its last consumer's reading."""

    def take(self) -> Tensor | None:
        """A slot to copy into, uint8 `[size]`, if there is one now."""
        for place, (slot, after) in enumerate(self._back):
            if after.done():
                del self._back[place]
                return slot
        return None

    def give_back(self, slot: Tensor, after: Event) -> None:
        """Its consumer reads the slot until `after`."""
        self._back.append((slot, after))
