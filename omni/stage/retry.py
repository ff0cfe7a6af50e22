"""Retries of a failed batch's parts, each alone, so that only the faulty part fails (`MailboxWorker.retry_each`)."""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class BatchPart(Protocol):
    """A request, or an item of one. alone: its last batch failed, so it runs in a batch of its own."""

    alone: bool


PartT = TypeVar("PartT", bound=BatchPart)


def together(parts: Sequence[PartT]) -> Sequence[PartT]:
    """The parts that may share a batch: all, or the first that runs alone, if there is one."""
    return next(([part] for part in parts if part.alone), parts)
