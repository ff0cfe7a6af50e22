"""A payload that is lent by reference: a connector's `Ref` at its producer, and `Pending` at its consumer, in one object."""

from collections.abc import Sequence

from omni.connector import Pending, Received, Ref
from omni.device import COMPLETED, Event
from omni.errors import OmniError
from omni.payload import Payload


class Loan:
    """Arrives at once. Its event guards the tensors."""

    def __init__(self, payload: Payload, ready: Event) -> None:
        self._received: Received | None = Received(payload, ready)
        self._end: Event | None = None
        """The end of the consumer's last use; None until the payload is released or aborted."""

    sent = True

    @property
    def released(self) -> bool:
        return self._end is not None

    @property
    def freed(self) -> bool:
        if self._end is not None and self._end.done():
            self._end = COMPLETED  # asked in every tick from then on
        return self._end is COMPLETED

    def pieces(self) -> Sequence[object]:
        return ()

    def add(self, piece: object) -> None:
        raise AssertionError("a payload that is lent by reference has no pieces")

    def poll(self) -> Received | None:
        if self._received is None:
            raise OmniError("a payload was given up before it arrived")
        return self._received

    def release(self, after: Event) -> None:
        """Only the first call has an effect."""
        if self._end is None:
            self._end, self._received = after, None

    def abort(self, reason: str = "") -> None:
        self.release(COMPLETED)


def lend(payload: Payload, ready: Event = COMPLETED) -> tuple[Ref, Pending]:
    """Sends a payload by reference: its producer's end, and its consumer's."""
    loan = Loan(payload, ready)
    return loan, loan
