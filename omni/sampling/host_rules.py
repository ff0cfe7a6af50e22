"""Rules that only the host can apply to a request's tokens at one stage. Made by the front end, used by the stage."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.sampling.params import StructuredOutput


class TextRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules about a request's text, as data; `omni.frontend.host_rules` builds `HostRules` of them. stop: texts that end it,
    from `min_tokens` tokens on. structured: its format. ends: ids that end a structured output. field: the name of `structured` in
    errors."""

    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    structured: StructuredOutput | None = None
    ends: tuple[int, ...] = ()
    field: str = ""


@dataclass(frozen=True, slots=True)
class LogitsEdit:
    """Changes to the logits that one token is sampled from. allowed: the bitmask of possible ids, int64 `[ceil(V / 64)]`; bit i of
    element m is id 64 * m + i. None allows all. ids, bias: int64 and float32 `[k]`; `bias` is added to the logits of `ids`, and
    -inf makes an id impossible."""

    allowed: NDArray[np.int64] | None = None
    ids: NDArray[np.int64] | None = None
    bias: NDArray[np.float32] | None = None


@runtime_checkable
class HostLogitsProcessor(Protocol):
    """Edits one request's logits by the tokens it has generated. Only its own row waits for each of its tokens. Called by one
    thread at a time, not always the same thread."""

    def edit(self) -> LogitsEdit:
        """The edit for the next token. Called once before the first token, and once after each `push`."""

    def push(self, token: int) -> bool:
        """Takes a generated token. Returns whether the request is complete with it: no token can follow."""


@dataclass(frozen=True, slots=True)
class StopVerdict:
    """withheld: number of newest tokens that are, or may become, part of a stop string. stopped: the text ends within them."""

    withheld: int
    stopped: bool


class StopMatcher(Protocol):
    """Finds the end of a request's text. Brief: called by the engine's thread for each token."""

    def push(self, token: int) -> StopVerdict:
        """Takes a generated token."""


@dataclass(frozen=True, slots=True)
class HostRules:
    """One request's host rules at one stage. They have state: each request, and each of its samples, has its own."""

    stops: StopMatcher | None = None
    host_processors: tuple[HostLogitsProcessor, ...] = ()


NO_RULES = HostRules()
