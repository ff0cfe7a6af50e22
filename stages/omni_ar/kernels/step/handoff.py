"""The columns of a row in a handoff: in the slots of `RowState.handoff`, and in `StepBuffers.accepted_NW`."""

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class HandoffFields(NamedTuple, Generic[T]):
    """The first columns of a row, in order. status: `RowStatus`. num_tokens: number of tokens that the step gave the row. ids: the
    first of its ids, of which `num_tokens` count."""

    status: T
    num_tokens: T
    ids: T


class DraftHandoffFields(NamedTuple, Generic[T]):
    """The last columns of a row, of a stage with a drafter. verified: number of drafts that the step verified. gain: tokens
    that drafts are expected to add to the next one, less their costs (`DraftState.costs`), in units of 1 / RATE_ONE; 0 if the row
    is to verify none."""

    verified: T
    gain: T


STATUS, NUM_TOKENS, IDS = HandoffFields[int](*range(len(HandoffFields._fields)))
"""The column of each field; of `ids`, the first."""
REPORTED = len(DraftHandoffFields._fields)
VERIFIED, GAIN = DraftHandoffFields[int](*range(-REPORTED, 0))
"""The column of each field, from the end of the row."""


def handoff_width(ids: int, reports_drafts: bool) -> int:
    """Number of int64 of a row. ids: maximum number."""
    return IDS + ids + (REPORTED if reports_drafts else 0)
