"""The fields of a row's state on the device, and the status that a step reports of it: named once, for host and kernels."""

from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class RowFields(NamedTuple, Generic[T]):
    """One row of `RowState.fields`, or a column of each: this order is the order of the columns.

    last: the newest token. length: tokens in the KV cache. delta: rotary position minus length. outputs: generated tokens.
    limit: the most of them. active: whether the row still runs. generation: `Row.generation` of its owner. counted: whether its
    newest step gave it a token.
    """

    last: T
    length: T
    delta: T
    outputs: T
    limit: T
    active: T
    generation: T
    counted: T


ROW_FIELDS = len(RowFields._fields)
FIELD_INDEX = RowFields(*range(ROW_FIELDS))
"""The column of each field."""


class RowStatus(IntEnum):
    """The state of a row after a step, as the token handoff reports it. Meaningless if the step gave the row no token.

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
        """The finish reason of the request of a row that is over."""
        return "length" if self in (RowStatus.FULL, RowStatus.FULL_WITH_FRAME) else "stop"

    @property
    def has_frame(self) -> bool:
        """Whether the row's last token has a frame, of a model that makes frames."""
        return self not in (RowStatus.STOPPED, RowStatus.FULL)
