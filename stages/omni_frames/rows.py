"""Which request has which row, and who waits for one."""

from bisect import insort
from collections.abc import Sequence
from typing import Generic

from omni_frames.request import RequestT


class RowQueue(Generic[RequestT]):
    """Rows go to the requests of lowest rank among those whose first frames came. A request keeps its row to its end.

    A row may be given on at once: whatever touches its memory runs on one stream, so new work follows the old.
    """

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._waiting: list[RequestT] = []
        self._seated: list[RequestT] = []

    @property
    def seated(self) -> Sequence[RequestT]:
        """Requests that have a row, longest first."""
        return self._seated

    def join(self, request: RequestT) -> None:
        """The request wants a row."""
        insort(self._waiting, request, key=lambda waiting: waiting.rank)

    def seat(self) -> bool:
        """Gives free rows out. Returns whether anyone got one."""
        seated = len(self._seated)
        while self._free and self._waiting:
            request = self._waiting.pop(0)
            request.row = self._free.pop()
            self._seated.append(request)
        return len(self._seated) > seated

    def leave(self, request: RequestT) -> None:
        """The request needs no row any more."""
        if request.row is not None:
            self._free.append(request.row)
            self._seated.remove(request)
            request.row = None
        elif request in self._waiting:
            self._waiting.remove(request)
