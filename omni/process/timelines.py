"""The timeline of several engines: each writes a file of its own, and they become one at the end."""

import os
from collections.abc import Sequence

import msgspec

from omni.engine import EngineOptions
from omni.engine.engine import LANE
from omni.timeline.export import write_trace
from omni.timeline.merge import merge
from omni.timeline.read import read_trace


def part_of(options: EngineOptions, place: str) -> EngineOptions:
    """The options of the engine on a place."""
    return msgspec.structs.replace(options, timeline=_part(options, place))


def merge_timelines(options: EngineOptions, places: Sequence[str]) -> None:
    """Writes the engines' timelines as one file, and removes theirs. An engine that launched nothing has none. Raises
    InputError if the file cannot be written."""
    parts = {place: part for place in places if os.path.exists(part := _part(options, place))}
    if parts:
        assert options.timeline is not None
        write_trace(merge({place: read_trace(part) for place, part in parts.items()}, LANE), options.timeline)
        for part in parts.values():
            os.remove(part)


def _part(options: EngineOptions, place: str) -> str:
    return f"{options.timeline}.{place.replace('/', '-').replace(':', '-')}"
