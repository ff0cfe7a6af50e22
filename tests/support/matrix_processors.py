"""A logits processor that sees what a request has said, as a plugin brings it: no run of `size` tokens comes twice."""

from collections.abc import Mapping, Sequence

import numpy as np

from omni.hookspecs import hookimpl
from omni.plugin.entries import LogitsProcessorEntry
from omni.sampling import HostLogitsProcessor, LogitsEdit
from omni_ar.processors import HistoryProcessor


class Unrepeated:
    """One text."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._said: list[int] = []

    def push(self, token: int) -> bool:
        self._said.append(token)
        return False

    def edit(self) -> LogitsEdit:
        said, before = self._said, self._size - 1
        newest = said[len(said) - before :]
        again = {said[i] for i in range(before, len(said)) if said[i - before : i] == newest}
        ids = np.array(sorted(again), np.int64)
        return LogitsEdit(ids=ids, bias=np.full(len(ids), -np.inf, np.float32))


class NoRepeat(HistoryProcessor):
    def open(self, args: Mapping[str, object], vocab_size: int) -> HostLogitsProcessor:
        size = args["size"]
        assert isinstance(size, int)
        return Unrepeated(size)


@hookimpl
def omni_logits_processors() -> Sequence[LogitsProcessorEntry]:
    return [LogitsProcessorEntry(name="no_repeat", processor="support.matrix_processors:NoRepeat")]
