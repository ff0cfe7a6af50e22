"""The timelines of several engines as one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from omni.timeline.trace import HostSpan, Interval, PhaseSpan, Trace


def merge(traces: Mapping[str, Trace], engine_lane: str) -> Trace:
    """Traces by place, on one clock. engine_lane: the lane of an engine's own work; it gets the name of its place too, as does a
    stage that several places have: as replicas, or as ranks."""
    places = Counter(stage for trace in traces.values() for stage in trace.stages)
    zero = min(trace.started for trace in traces.values())
    phases: list[PhaseSpan] = []
    host: list[HostSpan] = []
    for place, trace in traces.items():
        shift = trace.started - zero
        names = {
            stage: f"{stage} {place}" if stage == engine_lane or places[stage] > 1 else stage for stage in trace.stages
        }
        for phase in trace.phases:
            launched, ran = _later(phase.launched, shift), _later(phase.ran, shift)
            phases.append(replace(phase, stage=names[phase.stage], launched=launched, ran=ran))
        for span in trace.host:
            host.append(replace(span, stage=names[span.stage], took=_later(span.took, shift)))
    return Trace(
        device=", ".join(dict.fromkeys(trace.device for trace in traces.values())),
        phases=tuple(sorted(phases, key=lambda span: span.launched.start)),
        host=tuple(sorted(host, key=lambda span: span.took.start)),
        dropped=sum(trace.dropped for trace in traces.values()),
        unfinished=sum(trace.unfinished for trace in traces.values()),
        error=max(trace.error for trace in traces.values()),
        started=zero,
    )


def _later(interval: Interval, shift: int) -> Interval:
    return Interval(interval.start + shift, interval.end + shift)
