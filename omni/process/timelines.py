"""The timeline of several engines: each writes a file of its own, and they become one at the end."""

import logging
import os
from collections.abc import Sequence

import msgspec

from omni.engine import EngineOptions
from omni.engine.engine import LANE
from omni.errors import InputError
from omni.timeline.export import write_trace
from omni.timeline.merge import merge
from omni.timeline.read import read_trace
from omni.timeline.trace import Trace

_log = logging.getLogger(__name__)


def part_of(options: EngineOptions, place: str) -> EngineOptions:
    """The options of the engine on a place."""
    return msgspec.structs.replace(options, timeline=_part(options, place))


def merge_timelines(options: EngineOptions, places: Sequence[str]) -> None:
    """Writes the engines' timelines as one file, and removes theirs. An engine that launched nothing has none. Raises
    InputError if the file cannot be written."""
    traces: dict[str, Trace] = {}
    for place in places:
        part = _part(options, place)
        if not os.path.exists(part):
            continue
        try:
            traces[place] = read_trace(part)
        except InputError as error:  # its process was killed while it wrote
            _log.warning("the timeline of the engine on %s is lost: %s", place, error)
        os.remove(part)
    if traces:
        assert options.timeline is not None
        write_trace(merge(traces, LANE), options.timeline)


def _part(options: EngineOptions, place: str) -> str:
    return f"{options.timeline}.{place.replace('/', '-').replace(':', '-')}"
