"""Writes the timeline of an engine, from its start to its end, to a file."""

from collections.abc import Callable

from omni.device import Device
from omni.errors import ConfigError
from omni.timeline.export import write_trace
from omni.timeline.timeline import Timeline
from omni.timeline.trace import Trace
from omni.utils.files import write_problem
from omni.utils.log import safe_logger

REMEDY = "give the name of a file in a folder that can be written"

_log = safe_logger(__name__)


class TimelineFile(Timeline):
    """Writes the file on `close`, unless nothing was launched."""

    def __init__(
        self, path: str, device: Device, stages: tuple[str, ...], take: Callable[[Trace], object] | None = None
    ) -> None:
        """take: gets the recording on `close`, to write it elsewhere. Raises ConfigError for a path that cannot be written."""
        problem = write_problem(path)
        if problem is not None:
            raise ConfigError("engine.timeline", problem, REMEDY)
        super().__init__(device, stages)
        self._path = path
        self._take = take

    def close(self) -> None:
        """Stops observing, and writes the recording. Raises InputError if that fails."""
        trace = self.stop() if self.recording else None
        super().close()
        if trace is None:
            return
        if trace.phases:
            self._take(trace) if self._take is not None else write_trace(trace, self._path)
        else:
            _log.warning("nothing was launched: the timeline %s was not written", self._path)
