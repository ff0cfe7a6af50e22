"""One check and its outcome."""

from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from omni.errors import CheckpointError, ConfigError, OmniError

Status = Literal["ok", "warning", "problem"]
ValueT = TypeVar("ValueT")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """status: a problem prevents some use; a warning may. remedy: empty if all is well."""

    group: str
    name: str
    status: Status
    detail: str
    remedy: str = ""


def ok(group: str, name: str, detail: str) -> Finding:
    return Finding(group=group, name=name, status="ok", detail=detail)


def warning(group: str, name: str, detail: str, remedy: str) -> Finding:
    return Finding(group=group, name=name, status="warning", detail=detail, remedy=remedy)


def problem(group: str, name: str, detail: str, remedy: str) -> Finding:
    return Finding(group=group, name=name, status="problem", detail=detail, remedy=remedy)


def failed(group: str, name: str, error: Exception) -> Finding:
    if isinstance(error, CheckpointError | ConfigError):
        return problem(group, name, f"{error.field}: {error.problem}", error.remedy)
    if isinstance(error, OmniError):
        return problem(group, name, str(error), "see `omni plugins --verbose`")
    return problem(group, name, last_line(error), "run with --debug for the traceback")


def last_line(error: Exception) -> str:
    """An exception in one line, like the end of a traceback."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


class Attempt(NamedTuple, Generic[ValueT]):
    """An action's value, None if it failed, and the check."""

    value: ValueT | None
    check: Finding


def attempt(group: str, name: str, action: Callable[[], ValueT], found: Callable[[ValueT], str]) -> Attempt[ValueT]:
    """Calls `action`. found: describes its value. An exception becomes a problem."""
    try:
        value = action()
    except Exception as error:
        return Attempt(None, failed(group, name, error))
    return Attempt(value, ok(group, name, found(value)))
