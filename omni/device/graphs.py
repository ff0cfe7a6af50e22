"""Captured graphs of a stage: the sizes that it captures batches for, and the graphs that replay them."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from operator import itemgetter
from typing import Generic, TypeVar

from omni.utils.log import safe_logger

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of rows that are captured by default. Each takes time at start, so they are sparse. Padding is cheap for an
autoregressive stage: null rows have nothing to attend to and share their experts, and the weights are read anyway."""
_FEWEST_TOKENS, _MOST_TOKENS = 16, 8192
_STEPS = {256: 2, 1024: 4}
"""Sizes up to the next power of two, from this many tokens on: the device then has more to do than the host."""


def captured_sizes(given: Iterable[int] | None, most: int) -> tuple[int, ...]:
    """`given`, none above `most`, or sizes up to `most`. The largest first: the memory of a smaller step fits into that of a larger
    one."""
    if given is not None:
        return _largest_first(min(size, most) for size in given)
    return _largest_first({size for size in BATCH_SIZES if size < most} | {min(most, BATCH_SIZES[-1])})


def captured_lengths(given: Iterable[int] | None, most: int) -> tuple[int, ...]:
    """As `captured_sizes`, for lengths in tokens. By default these are powers of two, with further lengths between them where a
    step's time depends on the number of tokens."""
    if given is not None:
        return _largest_first(given)
    most = min(most, _MOST_TOKENS)
    lengths = {most}
    power, steps = _FEWEST_TOKENS, 1
    while power < most:
        steps = _STEPS.get(power, steps)
        lengths |= {power + power * step // steps for step in range(steps)}
        power *= 2
    return _largest_first(length for length in lengths if length <= most)


def check_sizes(
    given: Iterable[int] | None, most: int | None, option: str = "graph_batch_sizes", bound: str = "max_num_seqs"
) -> None:
    """Raises ValueError for sizes below 1 or over `most`, which may be open. option, bound: names of the options that set the sizes
    and `most`."""
    if any(size < 1 or (most is not None and size > most) for size in given or ()):
        limit = "" if most is None else f", at most {bound}, {most}"
        raise ValueError(f"{option} must be at least 1{limit}")


def _largest_first(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(sizes), reverse=True))


_log = safe_logger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)
GraphT = TypeVar("GraphT")


class CapturedGraphs(Generic[KeyT, GraphT]):
    """Finds the captured graph that a batch is padded to. Where anything is captured, logs once why batches run uncaptured."""

    def __init__(
        self, stage: str, *, unit: str = "rows", option: str = "graph_batch_sizes", others: str = "other batches"
    ) -> None:
        """unit: the word for what a size counts. option: the stage's option that sets the sizes. others: the words of the log for
        batches of keys without a graph."""
        self._stage = stage
        self._unit = unit
        self._option = option
        self._others = others
        self._graphs: dict[KeyT, list[tuple[int, GraphT]]] = {}
        self._logged: set[str] = set()

    def add(self, key: KeyT, size: int, graph: GraphT) -> None:
        """graph: a `Graph`, or a record of the stage's own with one."""
        insort(self._graphs.setdefault(key, []), (size, graph), key=itemgetter(0))

    def clear(self) -> None:
        self._graphs.clear()

    def find(self, key: KeyT, size: int) -> tuple[int, GraphT | None]:
        """The size that a batch is padded to, and the graph that replaces its launches; `size` and None if it runs uncaptured."""
        captured = self._graphs.get(key)
        if captured is None:
            self.log_uncaptured(self._others)
            return size, None
        index = bisect_left(captured, size, key=itemgetter(0))
        if index < len(captured):
            return captured[index]
        batches = f"batches of more than {captured[-1][0]} {self._unit}"
        self.log_uncaptured(batches, f": raise {self._stage}.{self._option}")
        return size, None

    def log_uncaptured(self, batches: str, remedy: str = "") -> None:
        if self._graphs and batches not in self._logged:
            self._logged.add(batches)
            _log.warning("%s: %s run uncaptured%s", self._stage, batches, remedy)
