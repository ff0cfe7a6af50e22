"""On the host, from the tokens themselves: no run of `size` tokens comes twice in a text."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np

from omni.sampling import HostLogitsProcessor, LogitsEdit
from omni_ar.processors import HistoryProcessor


class NoRepeatArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=1)]


class NoRepeatGuide:
    """One text. follow: what came after each run of `size - 1` tokens."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tokens: list[int] = []
        self._follow: dict[tuple[int, ...], set[int]] = {}

    def push(self, token: int) -> bool:
        if len(self._tokens) >= self._size - 1:
            self._follow.setdefault(self._before, set()).add(token)
        self._tokens.append(token)
        return False

    def edit(self) -> LogitsEdit:
        taken = sorted(self._follow.get(self._before, ()))
        bias = np.full(len(taken), -np.inf, np.float32)
        return LogitsEdit(ids=np.array(taken, np.int64), bias=bias)

    @property
    def _before(self) -> tuple[int, ...]:
        return tuple(self._tokens[len(self._tokens) - self._size + 1 :])


class NoRepeat(HistoryProcessor):
    def open(self, args: Mapping[str, object], vocab_size: int) -> HostLogitsProcessor:
        return NoRepeatGuide(msgspec.convert(args, NoRepeatArgs).size)
