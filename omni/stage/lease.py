"""Who still needs a payload's memory: `Hold` on the producer's side, `Lease` on the consumer's."""

from omni.connector import Connector, Ref
from omni.device import COMPLETED, Event


class Hold:
    """The producer's view of one produced payload: the references that edges took of it.

    Written by the orchestrator (`take`, then `seal`), read by the producer, which reuses the memory once `free`.
    """

    def __init__(self) -> None:
        self._refs: list[Ref] = []
        self._sealed = False

    def take(self, ref: Ref) -> None:
        self._refs.append(ref)

    def seal(self) -> None:
        """No further references will be taken."""
        self._sealed = True

    @property
    def free(self) -> bool:
        return self._sealed and all(ref.freed for ref in self._refs)


class Lease:
    """The consumer's view of one received payload, shared by the inputs an adapter made of it.

    Released to the connector when every holder has released it, after the last of their events.
    """

    def __init__(self, connector: Connector, ref: Ref, holders: int) -> None:
        self._connector = connector
        self._ref = ref
        self._left = holders
        self._after: Event = COMPLETED

    def release(self, after: Event) -> None:
        """One holder is done when `after` is. Holders of one lease gather on one stream, so the last event covers them all."""
        self._left -= 1
        if after is not COMPLETED:
            self._after = after
        if self._left == 0:
            self._connector.release(self._ref, self._after)
