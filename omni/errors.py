"""Errors that reach a user. Each names the field that is wrong, what is wrong with it, and how to mend it."""

import reprlib

QUOTED = 200
"""Characters of a user's input that an error quotes at most."""


def quoted(value: object) -> str:
    """`repr(value)` for an error: at most `QUOTED` characters of it, of valid Unicode, whatever `value` is; large ones are not
    written out first."""
    try:
        text = _REPR.repr(value)
    except Exception:  # the value is a user's, and so may its __repr__ be
        text = object.__repr__(value)
    return shortened(text)


def shortened(text: str) -> str:
    """`text` as it stands, without quotes, for an error: at most `QUOTED` characters of it, on one line of valid Unicode.

    For names, URLs and what libraries say of the input, which may hold all of it.
    """
    start = text[: QUOTED + 1].encode("utf-8", "backslashreplace").decode()
    start = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in start)
    return start if len(start) <= QUOTED and len(text) <= QUOTED else f"{start[: QUOTED - 3]}..."


def said(error: BaseException) -> str:
    """Type and text of any exception, for another error: as `shortened`, also if its own `__str__` raises."""
    try:
        text = str(error)
    except Exception:  # it is a library's or a user's, and does what it likes
        text = "it cannot even say why"
    return shortened(f"{type(error).__name__}: {text}")


class _Repr(reprlib.Repr):
    """Stops at a depth and a number of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxarray = (
            self.maxdeque
        ) = 20
        self.maxother = self.maxlong = QUOTED

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[: QUOTED + 1])

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[: QUOTED + 1])

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write very long ones in decimal.
        return repr(x) if x.bit_length() <= 4 * QUOTED else f"a number of {x.bit_length():,} bits"


_REPR = _Repr()


class OmniError(Exception):
    """Base of every error omni raises on purpose."""


class _FieldError(OmniError):
    """`field` (dotted path into what the user gave), `problem` and `remedy`, as one sentence."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class ConfigError(_FieldError):
    """A setting, an override or a pipeline is wrong. Raised before any weight is read."""


class InputError(_FieldError):
    """A request is wrong. Raised for that request alone."""


class OverloadedError(_FieldError):
    """As many requests wait as may, or they hold as much memory as they may. Raised for the request that came too late, or gave way
    to a more urgent one; later it may be let in."""


class CheckpointError(_FieldError):
    """A checkpoint folder or one of its files is wrong."""


class PluginError(OmniError):
    """A plugin that the pipeline needs could not be loaded, or two plugins claim one name."""


class StageError(OmniError):
    """A request failed while it ran; the message names the stage and what it was doing."""

    def __init__(self, stage: str, doing: str, problem: str) -> None:
        super().__init__(f"stage {stage!r} failed while {doing}: {problem}")
        self.stage = stage
        self.doing = doing
        self.problem = problem


def known(stage: str, doing: str, error: BaseException) -> OmniError:
    """The error itself if it is omni's own; any other as a StageError, whose cause it is."""
    if isinstance(error, OmniError):
        return error
    failure = StageError(stage, doing, said(error))
    failure.__cause__ = error
    return failure


class ForkError(OmniError):
    """A model was used in a process that was forked after it was loaded."""


class SyncError(OmniError):
    """The host would have waited for the device. phase: the phase being launched, None outside of phases."""

    def __init__(self, operation: str, phase: str | None, remedy: str) -> None:
        where = f"in phase {phase}" if phase is not None else "outside of phases"
        super().__init__(f"{operation} {where} makes the host wait for the device; {remedy}")
        self.operation = operation
        self.phase = phase
        self.remedy = remedy


def check_unicode(text: str, field: str) -> bytes:
    """`text` in UTF-8. Raises InputError for one that holds lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = f"is no valid Unicode: {error.reason} at {error.start}"
        raise InputError(field, problem, "remove lone surrogates") from error
