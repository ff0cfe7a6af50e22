"""Errors as data: the other process raises one of the same type with the same text."""

import builtins

import msgspec
import torch

from omni.errors import (
    CheckpointError,
    ConfigError,
    ForkError,
    InputError,
    LostPeerError,
    LostRankError,
    OmniError,
    OverloadedError,
    PluginError,
    StageError,
    SyncError,
    error_text,
    notes_of,
    traced,
)

_ARGUMENTS: dict[type[BaseException], tuple[str, ...]] = {
    **dict.fromkeys((CheckpointError, ConfigError), ("field", "problem", "remedy")),
    **dict.fromkeys((InputError, OverloadedError), ("field", "problem", "remedy", "operator_remedy")),
    **dict.fromkeys((ForkError, LostRankError, OmniError, PluginError), ()),
    LostPeerError: ("stage", "doing", "problem", "rank"),
    StageError: ("stage", "doing", "problem"),
    SyncError: ("operation", "phase", "remedy"),
}
"""The arguments of each error's constructor, by the names of its attributes. Without attributes, the text is the argument."""

_TYPES: dict[str, type[BaseException]] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (*_ARGUMENTS, torch.OutOfMemoryError, *vars(builtins).values())
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError)
}
"""Types of errors, by module and name."""


class RemoteTraceback(Exception):
    """The cause of an error from the engine process: its traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ErrorData(msgspec.Struct, frozen=True):
    """An exception.

    kind: module and name of its type, or of the error of omni that it is derived from. notes: see `BaseException.add_note`.
    trace: "" for an error that was never raised and has no cause.
    """

    kind: str
    arguments: tuple[str | None, ...]
    text: str
    notes: tuple[str, ...] = ()
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "ErrorData":
        try:
            return cls._of(error)
        except Exception:  # the attributes may be of any type in a plugin's class
            return cls("", (_encodable(error_text(error)),), _encodable(error_text(error)), trace=_trace(error))

    @classmethod
    def _of(cls, error: BaseException) -> "ErrorData":
        kind = next((kind for kind in type(error).__mro__ if kind in _ARGUMENTS), type(error))
        names = _ARGUMENTS.get(kind, ())
        # A plugin's subclass may not have set the attributes; the other process gives a StageError then.
        arguments = tuple(_optional(vars(error).get(name)) for name in names) or (_text(error),)
        raised = error.__traceback__ is not None or error.__cause__ is not None
        trace = _trace(error) if raised else ""
        notes = _notes(error)
        name = f"{kind.__module__}.{kind.__name__}" if set(names) <= vars(error).keys() else ""
        return cls(name, arguments, error_text(error), notes, trace)

    def rebuild(self, doing: str) -> Exception:
        """Returns the error. An error of a type that cannot be built here becomes a StageError of the engine, with `doing`."""
        kind = _TYPES.get(self.kind)
        error: BaseException
        try:
            error = StageError("engine", doing, self.text) if kind is None else kind(*self.arguments)
        except TypeError:  # a type with arguments of its own
            error = StageError("engine", doing, self.text)
        assert isinstance(error, Exception)
        for note in self.notes:
            error.add_note(note)
        if self.trace:
            error.__cause__ = RemoteTraceback(self.trace)
        return error

    def rebuild_known(self, doing: str) -> OmniError:
        """As `rebuild`, for errors of requests: others than omni's become a StageError."""
        error = self.rebuild(doing)
        if isinstance(error, OmniError):
            return error
        return StageError("engine", doing, self.text)


def _text(error: BaseException) -> str:
    try:
        return _encodable(str(error.args[0]) if len(error.args) == 1 else str(error))
    except Exception:  # a plugin's own `__str__` may raise
        return error_text(error)


def _trace(error: BaseException) -> str:
    return _encodable(traced(error))


def _notes(error: BaseException) -> tuple[str, ...]:
    return tuple(map(_encodable, notes_of(error)))


def _optional(value: object) -> str | None:
    return _encodable(str(value)) if value is not None else None


def _encodable(text: str) -> str:
    """Without lone surrogates, which no message holds."""
    return text.encode(errors="backslashreplace").decode()
