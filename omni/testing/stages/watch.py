"""A worker's reports about itself, checked in each tick."""

from collections.abc import Mapping, Sequence

from omni.stage import StageWorker
from omni.testing.stages.errors import calling, require

RELEASE = (
    "call Feed.release(after) when its last use is launched, and in `drop` for inputs that are not used: until then its "
    "producer may be paused"
)


class WorkerWatch:
    """Reads `usage` and `counters` of a worker."""

    def __init__(self, worker: StageWorker, most: dict[str, int]) -> None:
        """most: gets the highest number of each name that `usage` reports."""
        self._worker = worker
        self._most = most
        self._counters: Mapping[str, int] = {}

    @property
    def held(self) -> dict[str, int]:
        """The numbers of `usage` that are not zero."""
        with calling("usage", "count the worker's resources, in any state"):
            usage: object = self._worker.usage()
        _require_numbers("usage", usage)
        assert isinstance(usage, Mapping)
        self._most.update({name: max(count, self._most.get(name, 0)) for name, count in usage.items()})
        return {name: count for name, count in usage.items() if count}

    def look(self, requests: Sequence[str], inputs: Sequence[str]) -> None:
        """requests: those that are neither over nor aborted. inputs: those that the worker has taken and not released."""
        self._look_at_counters()
        held = self.held
        negative = [name for name, count in held.items() if count < 0]
        require(not negative, f"usage is zero or more: {', '.join(negative)}", "count the resources held now")
        require(
            bool(held) or not requests,
            f"usage is zero, and {_first(requests)} is not over",
            "count each record, row, input and batch that is held: an engine is idle when usage is zero",
        )
        require(
            bool(held) or not inputs,
            f"every input is released: {_first(inputs)}, is not, and usage is zero",
            f"{RELEASE}; count in `usage` the objects that still hold one",
        )

    def _look_at_counters(self) -> None:
        with calling("counters", "count in plain attributes"):
            counters: object = self._worker.counters()
        _require_numbers("counters", counters)
        assert isinstance(counters, Mapping)
        shrunk = [name for name, count in self._counters.items() if counters.get(name, 0) < count]
        require(not shrunk, f"counters only grow: {', '.join(shrunk)} did not", "count totals since the start")
        self._counters = dict(counters)


def _require_numbers(call: str, numbers: object) -> None:
    kept = isinstance(numbers, Mapping) and all(
        isinstance(name, str) and isinstance(count, int) for name, count in numbers.items()
    )
    require(kept, f"{call} returns numbers by name, not {numbers!r}", 'return {"requests": len(self.requests)}')


def _first(names: Sequence[str]) -> str:
    return names[0] if names else "none"
