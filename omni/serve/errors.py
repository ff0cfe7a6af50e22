"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from omni.errors import InputError, LostPeerError, OverloadedError, StageError, error_text, shortened
from omni.utils.log import safe_logger

_log = safe_logger("omni.serve")

RETRY = 503
"""Status of transient errors. The SDK retries them after `Retry-After`."""
GONE = 499
"""Status, in the log alone, of a request whose client went away."""


class HttpError(InputError):
    """A request that is wrong beyond a field of its body. status: of HTTP. code: for programs. headers: of the response."""

    def __init__(
        self,
        status: int,
        code: str,
        field: str,
        problem: str,
        remedy: str,
        headers: dict[str, str] | None = None,
        operator_remedy: str = "",
    ) -> None:
        super().__init__(field, problem, remedy, operator_remedy)
        self.status = status
        self.code = code
        self.headers = headers or {}


class EngineDown(StageError):
    """A request failed, and the engine accepts no more. Another server behind the same address may answer."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Described:
    """An error as a response. internal: a fault of the server or a plugin, which the log shows in full."""

    status: int
    body: ErrorBody
    headers: dict[str, str]
    internal: bool = False


ENGINE_FAILED = "the model's engine has failed, and answers no further request; the server's log has the error"
_FAILED = "the server failed while it answered; its log has the error, by the request's id"


def describe(error: BaseException, retry_after: int) -> Described:
    """retry_after: seconds, for transient errors. Clients cannot change settings of the server, so they get no `operator_remedy`,
    and no details of the server's faults."""
    retry = {"retry-after": str(retry_after)}
    match error:
        case HttpError():
            return _described(
                error.status, _for_client(error), _KINDS.get(error.status), error.field, error.code, error.headers
            )
        case InputError():
            return _described(400, _for_client(error), "invalid_request_error", error.field, "invalid_value")
        case OverloadedError():
            text = f"{error.problem}; {error.remedy}"
            return _described(RETRY, text, "overloaded_error", None, "overloaded", retry)
        case LostPeerError():
            lost = error.rank or f"the process of stage {error.stage!r}"
            text = f"{lost} ended, and is started again; send the request again"
            return _described(RETRY, text, "server_error", None, "engine_restarted", retry, internal=True)
        case EngineDown() | StageError(stage="engine"):
            return _described(RETRY, ENGINE_FAILED, "server_error", None, "engine_failed", internal=True)
        case _:
            return _described(500, _FAILED, "server_error", None, "internal_error", internal=True)


def _for_client(error: InputError) -> str:
    return f"{error.field}: {error.problem}; {error.remedy}"


def reported(error: BaseException, request_id: str, retry_after: int) -> Described:
    """`describe`, and a line in the log: with the traceback for a fault of the server or a plugin, unless a process has ended, and
    with the operator's remedy for a refusal."""
    described = describe(error, retry_after)
    if described.internal:
        # The frames of a lost process are those of the loop that waited for it.
        trace = None if isinstance(error, LostPeerError) else error
        _log.error("%s failed: %s", request_id, error_text(error), exc_info=trace)
    elif isinstance(error, InputError | OverloadedError) and error.operator_remedy:
        refusal = shortened(f"{error.field}: {error.problem}; {error.remedy}")
        _log.info("%s is refused: %s (the operator can %s)", request_id, refusal, error.operator_remedy)
    else:
        _log.info("%s is refused: %s", request_id, shortened(str(error)))
    return described


_KINDS = {401: "authentication_error", 404: "not_found_error", 408: "timeout_error", 503: "server_error"}


def _described(
    status: int,
    text: str,
    kind: str | None,
    param: str | None,
    code: str,
    headers: dict[str, str] | None = None,
    *,
    internal: bool = False,
) -> Described:
    detail = ErrorDetail(message=text, type=kind or "invalid_request_error", param=param, code=code)
    return Described(status, ErrorBody(error=detail), headers or {}, internal)


Rename = Callable[[str], str]
"""Maps the field of an error to its name in the request's body."""


def renamed(error: InputError, rename: Rename) -> InputError:
    """The same error, with the client's name of the field."""
    if isinstance(error, HttpError):
        return error
    return InputError(rename(error.field), error.problem, error.remedy, error.operator_remedy)
