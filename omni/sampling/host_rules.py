"""What only the host can tell of a request's tokens at one stage. Made by the front end, used by the stage."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LogitsEdit:
    """What happens to the logits that one token is sampled from.

    allowed: int64 `[ceil(V / 64)]`, bit i of word w is id 64 * w + i; the others, and ids behind the last word, are impossible.
        None allows all.
    ids, bias: int64 and float32 `[k]`; `bias` is added to the logits of `ids`, and -inf makes one impossible.
    """

    allowed: NDArray[np.int64] | None = None
    ids: NDArray[np.int64] | None = None
    bias: NDArray[np.float32] | None = None


class HostLogitsProcessor(Protocol):
    """Steers one request's tokens by what it has said so far. Its row waits for each of its tokens; no other row does.

    Called by one thread at a time, but not always by the same.
    """

    def edit(self) -> LogitsEdit:
        """For the next token. Called once before the first token, and once after each `push`."""
        ...

    def push(self, token: int) -> bool:
        """Takes a token that was generated. Returns whether the request is complete with it: nothing can follow."""
        ...


@dataclass(frozen=True, slots=True)
class StopVerdict:
    """held: of the newest tokens, how many may be part of a stop string, or are. stopped: the text ends within them."""

    held: int
    stopped: bool


class StopMatcher(Protocol):
    """Finds where a request's text ends. Brief: called by the engine's thread for each token."""

    def push(self, token: int) -> StopVerdict:
        """Takes a token that was generated."""
        ...


@dataclass(frozen=True, slots=True)
class HostRules:
    """One request's rules at one stage. They have state: each request, and each sample of it, has its own."""

    stops: StopMatcher | None = None
    host_processors: tuple[HostLogitsProcessor, ...] = ()


NO_RULES = HostRules()
