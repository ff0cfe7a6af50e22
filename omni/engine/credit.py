"""How far a producer may run ahead of its consumers: for each request and each edge by itself."""

from omni.stage import Pause, Resume, StageWorker


class Valve:
    """Whether one request runs at one producer: not while the credit of any of its edges is used up.

    changed: collects valves whose producer may have to be told, by `tell`: a credit that is used up and given back in between
    is no news.
    """

    def __init__(self, request_id: str, producer: StageWorker, changed: "dict[Valve, None]") -> None:
        self._request_id = request_id
        self._producer = producer
        self._changed = changed
        self._used_up = 0
        self._paused = False
        self._closed = False

    def count(self, used_up: int) -> None:
        """So many more credits of the request's edges are used up."""
        self._used_up += used_up
        self._changed[self] = None

    def tell(self) -> bool:
        """Tells the producer if it is to stop or to go on. Returns whether it was told anything."""
        paused = self._used_up > 0
        if self._closed or paused == self._paused:
            return False
        self._paused = paused
        self._producer.inbox.append(Pause(self._request_id) if paused else Resume(self._request_id))
        return True

    def close(self) -> None:
        """The producer is done with the request, or is told of its end: nothing else is to be told."""
        self._closed = True


class Credit:
    """Payloads of one request on one edge that the producer has lent and the consumer has neither taken nor released.

    Used up when there are `limit` of them, until half are back. Payloads without tensors hold no device memory and do not count.
    """

    def __init__(self, limit: int, valve: Valve) -> None:
        self.outstanding = 0
        self._limit = limit
        self._valve = valve
        self._used_up = False

    def spend(self) -> None:
        """A payload was sent."""
        self.outstanding += 1
        if not self._used_up and self.outstanding >= self._limit:
            self._used_up = True
            self._valve.count(1)

    def give_back(self) -> None:
        """A payload was taken or released."""
        self.outstanding -= 1
        if self.outstanding <= self._limit // 2:
            self.waive()

    def waive(self) -> None:
        """The edge does not hold its producer up: half of the credit is back, or nothing more will go over the edge."""
        if self._used_up:
            self._used_up = False
            self._valve.count(-1)
