"""The sizes that batches are captured for: numbers of rows, or of tokens."""

from collections.abc import Iterable

_MOST_CAPTURED = 512
_FEWEST_TOKENS, _MOST_TOKENS = 16, 8192
_STEPS = {256: 2, 1024: 4}
"""Sizes up to the next power of two, from this many tokens on: the device then has more to do than the host."""


def captured_sizes(given: Iterable[int] | None, most: int) -> tuple[int, ...]:
    """`given`, or sizes up to `most`, closer together where a step's time depends more on its rows. The largest first:
    the memory of a smaller step fits into that of a larger one."""
    if given is not None:
        return _largest_first(given)
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, _MOST_CAPTURED + 1, 32)}
    return _largest_first({size for size in sizes if size < most} | {min(most, _MOST_CAPTURED)})


def captured_lengths(given: Iterable[int] | None, most: int) -> tuple[int, ...]:
    """As `captured_sizes`, in tokens: by default powers of two, and some between where a step's time depends on their number."""
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
    given: Iterable[int] | None, most: int, option: str = "graph_batch_sizes", bound: str = "max_num_seqs"
) -> None:
    """Raises ValueError for sizes over `most`. option, bound: names of the options that set the sizes and `most`."""
    if any(not 1 <= size <= most for size in given or ()):
        raise ValueError(f"{option} must be at least 1, at most {bound}, {most}")


def _largest_first(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(sizes), reverse=True))
