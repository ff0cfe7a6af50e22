"""Where a request's outputs leave the engine."""

import logging

from omni.engine.request import EngineOutput, RequestFailed, RequestFinished, Sink
from omni.errors import StageError, said

_log = logging.getLogger(__name__)


class Outlet:
    """A sink that, whatever it does, harms its own request only."""

    def __init__(self, request_id: str, sink: Sink) -> None:
        self._request_id = request_id
        self._sink = sink

    def give(self, output: EngineOutput) -> None:
        """Raises StageError if the sink raises: then its request is to be given up."""
        try:
            self._sink(output)
        except Exception as error:
            self._report()
            raise StageError("sink", "taking an output", said(error)) from error

    def end(self, output: RequestFinished | RequestFailed) -> None:
        """The last output. The request is over, also if the sink raises."""
        try:
            self._sink(output)
        except Exception:
            self._report()

    def _report(self) -> None:
        _log.exception("the sink of request %s raised", self._request_id)
