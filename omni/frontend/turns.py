"""The turns of a tokenized chat: each begins with a start token, followed by a token of the role."""

import numpy as np
from numpy.typing import NDArray


def in_turns_of(role: int, ids_T: NDArray[np.int64], start: int) -> NDArray[np.bool_]:
    """Whether each token belongs to a turn of that role, bool `[T]`. start: the id of the start token."""
    starts_T = np.where(ids_T == start, np.arange(len(ids_T)), 0)
    turn_T = np.maximum.accumulate(starts_T)
    role_T = ids_T[np.minimum(turn_T + 1, len(ids_T) - 1)]
    return np.asarray(role_T == role)


def last_turn_of(role: int, ids_T: NDArray[np.int64], start: int) -> int:
    """The start of the last turn of that role, which must exist."""
    opens = (ids_T[:-1] == start) & (ids_T[1:] == role)
    return int(np.flatnonzero(opens)[-1])
