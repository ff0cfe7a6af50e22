"""The connector of a producer and a consumer in one process on one device: it passes a reference and the event that
guards it.

| object | holds | until |
|---|---|---|
| `LocalRef` | the payload, by reference | `release` or `abort` |
| the producer's memory | the payload's tensors | `freed`: aborted, or released and the release event is done |
"""

from omni.connector import Pending, Reach, Received, Ref
from omni.device import COMPLETED, Event, Stream
from omni.errors import OmniError
from omni.payload import Payload


class LocalRef:
    """A payload on its way to the consumer."""

    def __init__(self, payload: Payload, ready: Event) -> None:
        self.received: Received | None = Received(payload, ready)
        self.end: Event | None = None
        """The end of the consumer's last use; None until the payload is released or aborted."""
        self.abort_reason: str | None = None

    @property
    def released(self) -> bool:
        return self.end is not None

    @property
    def freed(self) -> bool:
        return self.end is not None and self.end.done()

    def release(self, end: Event) -> None:
        """The consumer does not use the payload after `end`. Only the first call has an effect."""
        if self.end is None:
            self.end = end
            self.received = None


class LocalPending:
    """Arrives at once. Its event guards the tensors."""

    def __init__(self, ref: LocalRef) -> None:
        self._ref = ref

    def poll(self) -> Received | None:
        if self._ref.abort_reason is not None:
            raise OmniError(f"a payload was given up before it arrived: {self._ref.abort_reason}")
        return self._ref.received


class LocalConnector:
    """Moves payloads by reference. It enqueues no work and keeps no list, so `close` frees nothing."""

    reach = Reach.PROCESS
    raw_device_tensors = True

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        return LocalRef(payload, ready)

    def receive(self, ref: Ref, stream: Stream) -> Pending:
        return LocalPending(_own(ref))

    def release(self, ref: Ref, after: Event) -> None:
        _own(ref).release(after)

    def abort(self, ref: Ref, reason: str) -> None:
        own = _own(ref)
        if own.end is None:
            own.abort_reason = reason
            own.release(COMPLETED)

    def close(self) -> None:
        pass


def _own(ref: Ref) -> LocalRef:
    if not isinstance(ref, LocalRef):
        raise TypeError(f"a {type(ref).__name__} is not a reference of the local connector")
    return ref
