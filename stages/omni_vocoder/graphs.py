"""What a captured chunk is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """What chunks must have in common to share a step: their frames, and whether they are the first of their requests."""

    frames: int
    first: bool


Captured = tuple[ChunkShape, int]
"""A chunk, and which of the output buffers it writes."""
