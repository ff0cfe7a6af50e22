"""The status of a row after a step."""

from enum import IntEnum


class RowStatus(IntEnum):
    """Whether a row goes on, the reason if not, and whether its last token has a frame. Meaningless for a row without a token.

    STOPPED: by a stop id, or by a frame that is dropped. FULL: at its token limit. STOPPED_WITH_FRAME: by a frame that is kept.
    FULL_WITH_FRAME: at its limit, in a model whose frames come before the handoff (`CodecModel.frame_end`).
    """

    RUNNING = 0
    STOPPED = 1
    FULL = 2
    STOPPED_WITH_FRAME = 3
    FULL_WITH_FRAME = 4

    @property
    def over(self) -> bool:
        return self is not RowStatus.RUNNING

    @property
    def reason(self) -> str:
        """The finish reason of a row that is over."""
        return "length" if self in (RowStatus.FULL, RowStatus.FULL_WITH_FRAME) else "stop"

    @property
    def has_frame(self) -> bool:
        """Whether the row's last token has a frame, of a model that makes frames."""
        return self not in (RowStatus.STOPPED, RowStatus.FULL)
