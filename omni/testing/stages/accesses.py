"""Accesses of the suite to the memory that a worker reads and writes, and the promise that a race with one of them breaks."""

from torch import Tensor

from omni.payload import PageSlice
from omni.testing.simulation.checker import Race
from omni.testing.stages.errors import STAGE
from omni.testing.stages.values import gathered


def broken_by(race: Race) -> AssertionError:
    """The error of a race with the worker's work: the promise that it breaks, and the remedy."""
    by = {race.first.by, race.second.by}
    promise = "work that uses the same memory is ordered by streams and events"
    remedy = "launch work that reads a result on the same stream, or let its stream wait for the event of the result"
    if spoil.__name__ in by:
        promise = (
            "an input is read before the event that it is released with, and its producer overwrites it then (`spoil`)"
        )
        remedy = "call Feed.release with the event that is recorded after the last use, on the stream of that use"
    elif by & {copy.__name__, scatter.__name__}:
        promise, remedy = (
            "an input is read once it has arrived",
            "ask Feed.arrived before you launch work that reads it",
        )
    elif fetch.__name__ in by:
        promise = (
            "an output has its values from Produced.ready on, until it is free, and its consumer reads it (`fetch`)"
        )
        remedy = "record `ready` after the work that writes an output, and use its memory again once Produced.free"
    accesses = f"{race.first}, unordered with {race.second}, both on {race.buffer}, byte {race.byte}"
    return STAGE.error(f"{promise}: {accesses}", remedy)


def copy(into: Tensor, value: Tensor) -> None:
    into.copy_(value)


def scatter(pages: Tensor, slots_n: Tensor, rows_nD: Tensor) -> None:
    pages.flatten(0, 1).index_copy_(0, slots_n, rows_nD)


def spoil(base: Tensor) -> None:
    """Overwrites the memory with values that it did not have, and that show in a sum."""
    base.fill_(float("nan")) if base.is_floating_point() else base.fill_(77)


def fetch(host: Tensor, tensor: Tensor | PageSlice, slots_n: Tensor | None) -> None:
    host.copy_(gathered(tensor, slots_n))
