"""Writes a trace in the Trace Event Format, for ui.perfetto.dev and chrome://tracing. A stage is a process; its host work and each
of its streams are threads. Times are microseconds. A launch and its run are slices with the same `args.id`, connected by a flow
arrow. The `args` of a run or of host work are the whole span: reading a trace back uses nothing else."""

from collections.abc import Iterator

import msgspec

from omni.errors import InputError
from omni.timeline.trace import MAIN, Interval, PhaseSpan, Trace, steps_of
from omni.utils.draft_counts import DraftCounts
from omni.utils.files import PathLike, replacing

FORMAT = "omni timeline 3"
HOST = "host"
"""The thread name of a stage's host work."""
LAUNCH, RUN, WORK = "launch", "run", "host"
"""The categories of slices in the exported trace."""

_Event = dict[str, object]
_Place = dict[str, int]


def write_trace(trace: Trace, path: PathLike) -> None:
    """Writes `trace` as JSON. Raises InputError if it cannot be written; an existing file then stays unchanged."""
    counts = {"dropped": trace.dropped, "unfinished": trace.unfinished, "error_ns": trace.error}
    counts["started_ns"] = trace.started
    head = {"format": FORMAT, "device": trace.device, **counts}
    try:
        with replacing(path) as file:
            file.write(b'{"displayTimeUnit": "ns",\n"otherData": ' + msgspec.json.encode(head) + b',\n"traceEvents": [')
            for number, event in enumerate(events_of(trace)):
                file.write((b",\n" if number else b"\n") + msgspec.json.encode(event))
            file.write(b"\n]}\n")
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another file name") from error


def events_of(trace: Trace) -> Iterator[_Event]:
    threads = _Threads(trace)
    yield from threads.names()
    for span in trace.host:
        yield _slice(span.name, WORK, span.took, threads.host(span.stage), span)
    for number, phase in enumerate(trace.phases):
        yield from _phase(number, phase, threads)
    for stage in trace.stages:
        for step in steps_of(trace, stage):
            if step.token_point is not None:
                place = threads.run(stage, MAIN)
                name = {"name": "token point", "cat": "step", "ph": "i", "s": "t"}
                drafts = DraftCounts.of(step.numbers).numbers()
                args = {"step": step.number, **drafts}
                yield {**name, "ts": _microseconds(step.token_point), **place, "args": args}


class _Threads:
    """Process and thread numbers of spans."""

    def __init__(self, trace: Trace) -> None:
        self._device = trace.device
        self._processes = {stage: number for number, stage in enumerate(trace.stages, 1)}
        self._threads = {
            (stage, lane): number for stage in trace.stages for number, lane in enumerate(trace.lanes(stage), 2)
        }

    def host(self, stage: str) -> _Place:
        return {"pid": self._processes[stage], "tid": 1}

    def run(self, stage: str, lane: str) -> _Place:
        return {"pid": self._processes[stage], "tid": self._threads[stage, lane]}

    def names(self) -> Iterator[_Event]:
        for stage, process in self._processes.items():
            yield _name("process_name", {"pid": process}, name=stage)
            yield _name("process_labels", {"pid": process}, labels=self._device)
            yield _name("process_sort_index", {"pid": process}, sort_index=process)
            yield _name("thread_name", self.host(stage), name=HOST)
            yield _name("thread_sort_index", self.host(stage), sort_index=1)
        for (stage, lane), thread in self._threads.items():
            yield _name("thread_name", self.run(stage, lane), name=lane)
            yield _name("thread_sort_index", self.run(stage, lane), sort_index=thread)


def _phase(number: int, span: PhaseSpan, threads: _Threads) -> Iterator[_Event]:
    host, run = threads.host(span.stage), threads.run(span.stage, span.lane)
    yield _slice(span.phase, LAUNCH, span.launched, host, {"id": number})
    yield _slice(span.phase, RUN, span.ran, run, {"id": number, **msgspec.to_builtins(span)})
    arrow = {"name": "launch", "cat": "launch", "id": number}
    yield {**arrow, "ph": "s", "ts": _microseconds(span.launched.start), **host}
    yield {**arrow, "ph": "f", "bp": "e", "ts": _microseconds(span.ran.start), **run}


def _slice(name: str, category: str, took: Interval, place: _Place, values: object) -> _Event:
    times = {"ts": _microseconds(took.start), "dur": _microseconds(took.length)}
    return {"name": name, "cat": category, "ph": "X", **times, **place, "args": values}


def _name(what: str, place: _Place, **values: object) -> _Event:
    return {"name": what, "ph": "M", **place, "args": values}


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000
