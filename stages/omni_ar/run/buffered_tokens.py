"""Tokens that the host has read and not emitted, so that several of a request are in one payload."""

from dataclasses import dataclass, field

from omni_ar.run.blocks.pool import BlockTable
from omni_ar.run.step import WrittenPages


@dataclass(slots=True, eq=False)
class BufferedTokens:
    """Consecutive tokens of a request. table: of their step; its `unread` counts them, so that the blocks of their frames are kept.
    ends: whether the last id is an end token. positions: of the tokens that begin frames. frames: the pages of these, of a codec
    model."""

    table: BlockTable
    ids: list[int] = field(default_factory=list)
    ends: bool = False
    positions: list[int] = field(default_factory=list)
    frames: WrittenPages | None = None

    def __post_init__(self) -> None:
        self.table.unread += 1

    def forget(self) -> None:
        """Called when the tokens have been emitted, or when their request no longer has a consumer."""
        self.table.unread -= 1
