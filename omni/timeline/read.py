"""Reads a trace from its file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from omni.errors import InputError
from omni.timeline.export import FORMAT, RUN, WORK
from omni.timeline.trace import HostSpan, PhaseSpan, Trace


class _Head(msgspec.Struct, frozen=True):
    """The file's top level. Unknown fields are ignored: a viewer may have added them."""

    format: str
    device: str
    dropped: int
    unfinished: int
    error_ns: int
    started_ns: int


class _Event(msgspec.Struct, frozen=True):
    ph: str
    cat: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _TraceFile(msgspec.Struct, frozen=True):
    traceEvents: list[_Event]
    otherData: _Head


T = TypeVar("T")


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads a trace that `write_trace` wrote. Raises InputError, which names the file and the field."""
    name = str(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(name, f"cannot be read ({error.strerror})", "give the name of a timeline") from error
    file = _decode(name, content, _TraceFile, "")
    head = file.otherData
    if head.format != FORMAT:
        raise _refused(name, "otherData.format", f"is {head.format!r}, not {FORMAT!r}: of another version, perhaps")
    phases: list[PhaseSpan] = []
    host: list[HostSpan] = []
    for number, event in enumerate(file.traceEvents):
        place = f"traceEvents[{number}].args"
        if event.ph == "X" and event.cat == RUN:
            phases.append(span := _decode(name, event.args, PhaseSpan, place))
            if span.launched.length < 0 or span.ran.length < 0:
                raise _refused(name, place, "has an interval that ends before its start")
        elif event.ph == "X" and event.cat == WORK:
            host.append(_decode(name, event.args, HostSpan, place))
    if not phases:
        raise _refused(name, "traceEvents", "holds no phases")
    phases.sort(key=lambda span: span.launched.start)
    return Trace(
        head.device,
        tuple(phases),
        host=tuple(host),
        dropped=head.dropped,
        unfinished=head.unfinished,
        error=head.error_ns,
        started=head.started_ns,
    )


def _decode(name: str, content: bytes | msgspec.Raw, type_: type[T], place: str) -> T:
    decode: Callable[..., T] = msgspec.json.decode
    try:
        return decode(content, type=type_)
    except msgspec.ValidationError as error:
        # "Expected `int`, got `str` - at `$.traceEvents[3].ph`"
        problem, _, below = str(error).partition(" - at `$")
        field = (place + below.rstrip("`")).lstrip(".")
        raise _refused(name, field or "the file", f"is wrong ({problem})") from error
    except msgspec.DecodeError as error:
        raise _refused(name, place or "the file", f"is not JSON ({error})") from error


def _refused(name: str, field: str, problem: str) -> InputError:
    return InputError(name, f"{field} {problem}", "use a file that this version's `omni run --timeline` wrote")
