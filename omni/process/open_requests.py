"""The requests of an engine in another process that are not finished."""

import threading

from omni.engine import RequestFailed, Sink
from omni.engine.request import SafeSink
from omni.errors import OmniError, StageError, fresh


class OpenRequests:
    """Their sinks, by request id. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: dict[str, SafeSink] = {}
        self._failure: StageError | None = None

    def __len__(self) -> int:
        return len(self._sinks)

    @property
    def failure(self) -> StageError | None:
        """The error if requests are refused. A new object each time, since a raised error keeps its frames."""
        return fresh(self._failure) if self._failure is not None else None

    def add(self, request_id: str, sink: Sink) -> StageError | None:
        """Returns the error if the request is refused."""
        with self._lock:
            failure = self.failure
            if failure is not None:
                return failure
            if request_id in self._sinks:
                raise AssertionError(f"request id {request_id!r} is in use")
            self._sinks[request_id] = SafeSink(request_id, sink)
        return None

    def get(self, request_id: str) -> SafeSink | None:
        return self._sinks.get(request_id)

    def pop(self, request_id: str) -> SafeSink | None:
        with self._lock:
            return self._sinks.pop(request_id, None)

    def fail(self, request_id: str, error: OmniError) -> None:
        """Ends a request, unless it has ended."""
        sink = self.pop(request_id)
        if sink is not None:
            sink.finish(RequestFailed(error))

    def refuse(self, error: StageError) -> list[SafeSink]:
        """Refuses later requests. Returns the sinks of those that are open, and removes them."""
        with self._lock:
            self._failure = fresh(error)
            sinks, self._sinks = list(self._sinks.values()), {}
        return sinks
