"""Reads a trace from its file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from omni.device import PhaseCategory
from omni.errors import InputError
from omni.timeline.export import FORMAT, LAUNCH, RUN, WORK
from omni.timeline.trace import HostSpan, Interval, PhaseSpan, Trace

_REMEDY = "use a file that this version's `omni run --timeline` wrote"


class _Head(msgspec.Struct, frozen=True):
    """The file's top level. Unknown fields are ignored: a viewer may have added them."""

    format: str
    device: str
    dropped: int
    unfinished: int
    error_ns: int
    started_ns: int = 0


class _Event(msgspec.Struct, frozen=True):
    ph: str
    name: str = ""
    cat: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _File(msgspec.Struct, frozen=True):
    traceEvents: list[_Event]
    otherData: _Head


class _Name(msgspec.Struct, frozen=True):
    name: str


class _Phase(msgspec.Struct, frozen=True):
    id: int
    category: PhaseCategory
    step: int | None = None


_Slice = tuple[str, _Event]
"""An event, with its place in the file."""
T = TypeVar("T")


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads a trace that `write_trace` wrote. Raises InputError, which names the file and the field."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "give the name of a timeline") from error
    return _Reader(str(path)).read(content)


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._stages: dict[int, str] = {}
        self._lanes: dict[tuple[int, int], str] = {}

    def read(self, content: bytes) -> Trace:
        file = self._decode(content, _File, "")
        head = file.otherData
        if head.format != FORMAT:
            self._refuse("otherData.format", f"is {head.format!r}, not {FORMAT!r}: of another version, perhaps")
        slices = {category: list[_Slice]() for category in (LAUNCH, RUN, WORK)}
        for number, event in enumerate(file.traceEvents):
            place = f"traceEvents[{number}]"
            if event.ph == "M":
                self._take_name(place, event)
            elif event.ph == "X" and event.cat in slices:
                if event.dur < 0:
                    self._refuse(f"{place}.dur", "is negative")
                slices[event.cat].append((place, event))
        phases = self._phases(slices[LAUNCH], slices[RUN])
        if not phases:
            self._refuse("traceEvents", "holds no phases")
        host = []
        for place, event in slices[WORK]:
            numbers = self._decode(event.args, dict[str, int], f"{place}.args")
            host.append(HostSpan(self._stage(place, event), event.name, numbers, _interval(event)))
        return Trace(head.device, phases, tuple(host), head.dropped, head.unfinished, head.error_ns, head.started_ns)

    def _take_name(self, place: str, event: _Event) -> None:
        if event.name == "process_name":
            self._stages[event.pid] = self._decode(event.args, _Name, f"{place}.args").name
        elif event.name == "thread_name":
            self._lanes[event.pid, event.tid] = self._decode(event.args, _Name, f"{place}.args").name

    def _phases(self, launches: list[_Slice], runs: list[_Slice]) -> tuple[PhaseSpan, ...]:
        by_id = {self._decode(event.args, _Phase, f"{place}.args").id: (place, event) for place, event in runs}
        phases = []
        for place, event in launches:
            phase = self._decode(event.args, _Phase, f"{place}.args")
            if phase.id not in by_id:
                self._refuse(f"{place}.args.id", f"is {phase.id}, and no slice of category {RUN!r} has it")
            run_place, run = by_id[phase.id]
            stage, lane = self._stage(run_place, run), self._lane(run_place, run)
            launched, ran = _interval(event), _interval(run)
            phases.append(PhaseSpan(stage, lane, event.name, phase.category, phase.step, launched, ran))
        return tuple(sorted(phases, key=lambda span: span.launched.start))

    def _stage(self, place: str, event: _Event) -> str:
        if event.pid not in self._stages:
            self._refuse(f"{place}.pid", f"is {event.pid}, which no `process_name` names")
        return self._stages[event.pid]

    def _lane(self, place: str, event: _Event) -> str:
        if (event.pid, event.tid) not in self._lanes:
            self._refuse(f"{place}.tid", f"is {event.tid}, which no `thread_name` names")
        return self._lanes[event.pid, event.tid]

    def _decode(self, content: bytes | msgspec.Raw, type_: type[T], place: str) -> T:
        decode: Callable[..., T] = msgspec.json.decode
        try:
            return decode(content, type=type_)
        except msgspec.ValidationError as error:
            # "Expected `int`, got `str` - at `$.traceEvents[3].ts`"
            problem, _, below = str(error).partition(" - at `$")
            field = (place + below.rstrip("`")).lstrip(".")
            self._refuse(field or "the file", f"is wrong ({problem})")
        except msgspec.DecodeError as error:
            self._refuse(place or "the file", f"is not JSON ({error})")

    def _refuse(self, field: str, problem: str) -> NoReturn:
        raise InputError(self._path, f"{field} {problem}", _REMEDY)


def _interval(event: _Event) -> Interval:
    start = round(event.ts * 1000)
    return Interval(start, start + round(event.dur * 1000))
