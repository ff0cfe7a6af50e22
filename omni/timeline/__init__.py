"""Timelines: launch and run times of phases."""

from omni.timeline.export import write_trace
from omni.timeline.read import read_trace
from omni.timeline.timeline import Timeline, watched
from omni.timeline.trace import MAIN, HostSpan, Interval, PhaseSpan, Trace

__all__ = ["MAIN", "HostSpan", "Interval", "PhaseSpan", "Timeline", "Trace", "read_trace", "watched", "write_trace"]
