"""The progress bar for the capture of a stage's steps."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

SizeT = TypeVar("SizeT")


def capture_progress(stage: str, sizes: Sequence[SizeT]) -> Iterator[SizeT]:
    """Iterates over `sizes`, with a progress bar on stderr if that is a terminal."""
    yield from tqdm(sizes, desc=f"capturing {stage}", unit="graph", leave=False, disable=None)
