"""Who still needs a payload's memory: `Hold` on the producer's side, `Lease` on the consumer's.

| a payload is | when | who asks |
|---|---|---|
| taken | each consumer made it its own concern or let go of it: it counts no more against the edge's credit | orchestrator |
| released | each consumer let go of it: nothing more that reads it will be launched (`Hold.released`) | producer |
| free | released, and what consumers launched before is over: the memory is the producer's again (`Hold.free`) | producer |
"""

import logging
from collections.abc import Callable

from omni.connector import Connector, Ref
from omni.device import COMPLETED, Event

_log = logging.getLogger(__name__)


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
    def released(self) -> bool:
        """No consumer will launch anything more that reads the payload; what was launched may still be running."""
        return self._sealed and all(ref.released for ref in self._refs)

    @property
    def free(self) -> bool:
        return self._sealed and all(ref.freed for ref in self._refs)


class Lease:
    """One input's claim on a received payload; the inputs that an adapter made of a payload share it (`lend`).

    A consumer may leave a lease neither taken nor released only while it waits for room or time of its own, never while it
    waits for another input of the request: the producer may be paused until then, and the other input with it.
    """

    def __init__(self, shared: "_Shared") -> None:
        self._shared = shared
        self._taken = False

    def take(self) -> None:
        """The consumer has made the payload its own concern: it no longer counts against the edge. Idempotent."""
        if not self._taken:
            self._taken = True
            self._shared.taken()

    def release(self, after: Event) -> None:
        """The input is done with the payload when `after` is. Once only."""
        self.take()
        self._shared.released(after)


class _Shared:
    """Released to the connector when every lease has been, after the last of their events.

    The leases of one payload gather on one stream, so the last event covers them all.
    """

    def __init__(self, connector: Connector, ref: Ref, leases: int, on_taken: Callable[[], None]) -> None:
        self._connector = connector
        self._ref = ref
        self._untaken = self._unreleased = leases
        self._on_taken = on_taken
        self._after: Event = COMPLETED

    def taken(self) -> None:
        self._untaken -= 1
        if self._untaken == 0:
            self._on_taken()

    def released(self, after: Event) -> None:
        self._unreleased -= 1
        if after is not COMPLETED:
            self._after = after
        if self._unreleased == 0:
            self.close()

    def close(self) -> None:
        try:
            self._connector.release(self._ref, self._after)
        except Exception:
            # No stage must fail for it: what is lost is the payload's memory.
            _log.exception("the connector failed to release a payload")


def lend(connector: Connector, ref: Ref, leases: int, on_taken: Callable[[], None] = lambda: None) -> tuple[Lease, ...]:
    """Leases of one payload, one for each input made of it; with none of them the payload is released at once.

    on_taken: called once, when all of them have been taken or released.
    """
    shared = _Shared(connector, ref, leases, on_taken)
    if not leases:
        on_taken()
        shared.close()
    return tuple(Lease(shared) for _ in range(leases))
