"""What a user sees while a stage captures its steps."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

SizeT = TypeVar("SizeT")


def capture_progress(stage: str, sizes: Sequence[SizeT]) -> Iterator[SizeT]:
    """`sizes`, with a progress bar on stderr where that is a terminal."""
    yield from tqdm(sizes, desc=f"capturing {stage}", unit="graph", leave=False, disable=None)
