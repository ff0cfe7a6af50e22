"""The turns of a chat in its tokens: each begins with a token that says so, and the next one names whose it is."""

import numpy as np
from numpy.typing import NDArray


def in_turns_of(role: int, ids_T: NDArray[np.int64], start: int) -> NDArray[np.bool_]:
    """Whether each token belongs to a turn of that role, bool `[T]`. start: the id that begins turns."""
    starts_T = np.where(ids_T == start, np.arange(len(ids_T)), 0)
    turn_T = np.maximum.accumulate(starts_T)
    role_T = ids_T[np.minimum(turn_T + 1, len(ids_T) - 1)]
    return np.asarray(role_T == role)


def last_turn_of(role: int, ids_T: NDArray[np.int64], start: int) -> int:
    """Where the last turn of that role begins, which has one."""
    opens = (ids_T[:-1] == start) & (ids_T[1:] == role)
    return int(np.flatnonzero(opens)[-1])
