"""The status of a row after a step."""

from enum import IntEnum


class RowStatus(IntEnum):
    """Whether a row continues, its finish reason if not, and whether its last token has a frame. Undefined for a row
    without a token.

    STOPPED: stopped by a stop id, or by a frame that is dropped. FULL: reached its token limit. STOPPED_WITH_FRAME:
    stopped by a frame that is kept. FULL_WITH_FRAME: reached its limit, in a model whose frames precede the handoff
    (`CodecModel.frame_end`).
    """

    RUNNING = 0
    STOPPED = 1
    FULL = 2
    STOPPED_WITH_FRAME = 3
    FULL_WITH_FRAME = 4

    @property
    def finished(self) -> bool:
        return self is not RowStatus.RUNNING

    @property
    def reason(self) -> str:
        """The finish reason of a row that has ended."""
        return "length" if self in (RowStatus.FULL, RowStatus.FULL_WITH_FRAME) else "stop"

    @property
    def has_frame(self) -> bool:
        """Whether the row's last token has a frame, in a model with frames."""
        return self not in (RowStatus.STOPPED, RowStatus.FULL)
