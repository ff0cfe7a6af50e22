"""Errors for users. Each has the field, the problem and the remedy."""

import reprlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

from omni.utils.interrupts import is_interrupt
from omni.utils.origin import origin, traceback_of, with_origin, with_place

QUOTED = 200
"""Longest quotation of a user's input in an error, in characters."""


def quoted(value: object) -> str:
    """`repr(value)` for an error: at most `QUOTED` characters of valid Unicode, for any value. Large values are cut first."""
    try:
        text = _REPR.repr(value)
    except Exception:  # the value's __repr__ may be the user's own
        text = object.__repr__(value)
    return shortened(text)


def shortened(text: str) -> str:
    """`text` without quotes, for an error: at most `QUOTED` characters, on one line of valid Unicode. For names, URLs and messages
    of libraries, which may hold the whole input."""
    start = text[: QUOTED + 1].encode("utf-8", "backslashreplace").decode()
    start = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in start)
    return start if len(start) <= QUOTED and len(text) <= QUOTED else f"{start[: QUOTED - 3]}..."


def counted(count: int, noun: str) -> str:
    """`"1 answer"`, `"2 answers"`: for an error."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def type_of(value: object) -> str:
    """A value's type as words, for an error: `"None"`, or `"a list"`."""
    return "None" if value is None else f"a {name_of(type(value))}"


def name_of(kind: type) -> str:
    """A class's name, `shortened`. Safe for metaclasses that redefine it."""
    return shortened(_NAME.__get__(kind))


def error_text(error: BaseException) -> str:
    """Type and message of any exception, `shortened`, for another error. Its `__str__` may raise, or return a `str` of its own."""
    try:
        text = str.__str__(str(error))
    except BaseException as raised:  # a library's or a user's own exception may raise here, SystemExit too
        if is_interrupt(raised):
            raise
        text = "without a message"
    return shortened(f"{name_of(type(error))}: {text}")


def printable_error(error: BaseException) -> BaseException:
    """The error, or, if it cannot be printed, an error with its type's name, text and traceback.

    A plugin's exception, or one of its causes, may raise when its class or attributes are read: such an exception would end the
    code that handles, logs or shows the first one.
    """
    try:
        isinstance(error, OmniError)
        found = traceback.TracebackException(type(error), error, traceback_of(error), limit=0, compact=True)
        for _ in found.format():
            pass
    except Exception:
        return _readable(error)
    return error


def exception_of(error: BaseException) -> Exception:
    """An exception of plugin code, as an Exception: a SystemExit or a library's panic is replaced by one with its type's name,
    text, notes and traceback. Raises the user's Ctrl-C."""
    if issubclass(type(error), Exception):  # `isinstance` also asks for `__class__`
        return cast(Exception, error)
    if is_interrupt(error):
        raise error
    exception = _readable(error)
    for note in notes_of(error):
        exception.add_note(note)
    return exception


def _readable(error: BaseException) -> Exception:
    kind, _, text = error_text(error).partition(": ")
    readable: Exception = type(kind, (Exception,), {})(text)
    return readable.with_traceback(traceback_of(error))


def traced(error: BaseException) -> str:
    """The error's traceback as text; empty if Python cannot format it."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # a plugin's own; in Python 3.11 also another thread that parses at the same time
        return ""


def notes_of(error: BaseException) -> list[str]:
    """See `BaseException.add_note`. Notes that are not text are left out."""
    try:
        return [str.__str__(note) for note in vars(error).get("__notes__", ()) if isinstance(note, str)]
    except Exception:  # they are a plugin's own
        return []


class _Repr(reprlib.Repr):
    """Bounded in depth and number of elements."""

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
_NAME = vars(type)["__name__"]


class OmniError(Exception):
    """Base of all errors of omni."""


class _FieldError(OmniError):
    """`field` (dotted path into the user's input), `problem` and `remedy`, as one sentence."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class ConfigError(_FieldError):
    """A setting, an override or a pipeline is wrong. Raised before any weight is read."""


class _RequestError(_FieldError):
    """operator_remedy: the remedy of the operator, who loads the model, such as `"raise text.max_model_len"`; `""` for
    nothing. The text has both remedies. Servers send their clients `remedy` alone."""

    def __init__(self, field: str, problem: str, remedy: str, operator_remedy: str = "") -> None:
        super().__init__(field, problem, f"{remedy}, or {operator_remedy}" if operator_remedy else remedy)
        self.remedy = remedy
        self.operator_remedy = operator_remedy


class InputError(_RequestError):
    """A request is wrong. Raised for that request alone."""


class OverloadedError(_RequestError):
    """Too many requests wait, or they hold too much memory. Raised for the newest request, or for one rejected for a more urgent
    one; a retry may succeed later."""


class CheckpointError(_FieldError):
    """A checkpoint folder or one of its files is wrong."""


class PluginError(OmniError):
    """A plugin of the pipeline could not be loaded, or two plugins claim one name."""


class StageError(OmniError):
    """A request failed while it ran. stage, doing: where, and in which step."""

    def __init__(self, stage: str, doing: str, problem: str) -> None:
        super().__init__(f"stage {stage!r} failed while {doing}: {problem}")
        self.stage = stage
        self.doing = doing
        self.problem = problem


class LostPeerError(StageError):
    """A request failed because the process of one of its stages ended. It can run again, from its prompt.

    rank: which rank ended, if the stage is cut across engines, such as `"rank 2 of 3 of stage 'text'"`; else `""`.
    """

    def __init__(self, stage: str, doing: str, problem: str, rank: str = "") -> None:
        super().__init__(stage, doing, problem)
        self.rank = rank


def fresh(error: StageError) -> StageError:
    """The same error as a new object: a raised one keeps the frames it went through."""
    if isinstance(error, LostPeerError):
        return LostPeerError(error.stage, error.doing, error.problem, error.rank)
    return type(error)(error.stage, error.doing, error.problem)


class LostRankError(OmniError):
    """Another rank of a stage that is cut across engines has ended, or does not answer. It ends the engine, and all ranks of the
    stage are started again."""


class ReturnedError(ValueError):
    """Plugin code returned a wrong value. code: the function."""

    def __init__(self, problem: str, code: object) -> None:
        super().__init__(problem)
        self.code = code


def as_omni_error(stage: str, doing: str, error: BaseException, code: object = None) -> OmniError:
    """The error itself if it is omni's own; any other as the cause of a StageError, which names the plugin, file and line.

    code: the called function, named if the error's traceback has no code of a plugin.
    """
    error = printable_error(error)
    if isinstance(error, OmniError):
        return error
    failure = StageError(stage, doing, fault_of(error, code))
    failure.__cause__ = error
    return failure


def fault_of(error: BaseException, code: object = None) -> str:
    """Type, message and origin of an exception of a plugin, as the problem of another error. code: as in `as_omni_error`."""
    if isinstance(error, ReturnedError):
        return with_place(str(error), origin(code=error.code) or origin(error))
    return with_origin(error_text(error), error, code)


class plugin_call:  # a class, since a generator would take a microsecond more for each payload
    """Runs plugin code for a request: any exception becomes an error of omni, by `as_omni_error`.

    stage: or the edge. code: the called function.
    """

    __slots__ = ("_code", "_doing", "_stage")

    def __init__(self, stage: str, doing: str, code: object) -> None:
        self._stage = stage
        self._doing = doing
        self._code = code

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not is_interrupt(error):  # a SystemExit or a library's panic too
            raise as_omni_error(self._stage, self._doing, error, self._code) from printable_error(error)


@contextmanager
def errors_as(convert: Callable[[BaseException], OmniError | None]) -> Iterator[None]:
    """Runs plugin code while a model is opened or closed: exceptions of other types become errors of omni.

    convert: returns that error for an exception, including a SystemExit or a library's panic; None leaves it unchanged.
    """
    try:
        yield
    except OmniError:
        raise
    except BaseException as error:
        given = printable_error(error)
        converted = None if is_interrupt(error) else convert(given)
        if converted is None:
            raise
        raise converted from given


def plugin_setup(field: str, remedy: str, code: object) -> AbstractContextManager[None]:
    """`errors_as` a PluginError about `field`. code: as in `as_omni_error`."""
    return errors_as(lambda error: plugin_error(field, fault_of(error, code), remedy))


def plugin_error(field: str, problem: str, remedy: str) -> PluginError:
    """field: of the plugin's entry, pipeline or class."""
    return PluginError(f"{field}: {problem}; {remedy}")


class ForkError(OmniError):
    """A model was used in a process that was forked after it was loaded."""


class SyncError(OmniError):
    """The host would have waited for the device. phase: the one being launched, None outside of phases."""

    def __init__(self, operation: str, phase: str | None, remedy: str) -> None:
        where = f"in phase {phase}" if phase is not None else "outside of phases"
        super().__init__(f"{operation} {where} makes the host wait for the device; {remedy}")
        self.operation = operation
        self.phase = phase
        self.remedy = remedy


def is_unicode(text: str) -> bool:
    """Whether `text` is valid Unicode: it holds no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(text: str, field: str) -> bytes:
    """Returns `text` in UTF-8. Raises InputError for one that holds lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = f"is not valid Unicode: {error.reason} at {error.start}"
        raise InputError(field, problem, "remove lone surrogates") from error
