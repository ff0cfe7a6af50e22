"""Gives blocks back once nothing can touch them any more."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from omni.device import Event
from omni.payload import PageSlice
from omni.stage import Hold
from omni_ar.run.blocks.pool import BlockPool
from omni_ar.run.blocks.spill import Spiller
from omni_ar.run.blocks.table import BlockTable, Lent


@dataclass(frozen=True, slots=True)
class _Spilled:
    """Memory outside the pages that consumers read in their place."""

    hold: Hold
    memory: Tensor


@dataclass(slots=True, eq=False)
class _Leaving:
    """A table that its request does not need any more. moved: of payload that was spilled, gathers from the old place."""

    table: BlockTable
    moved: list[Event]

    @property
    def free(self) -> bool:
        # A long answer lends thousands of payloads: each is asked until it is free, and not again.
        lent = self.table.lent
        while lent and lent[-1].hold.free:
            lent.pop()
        gathered = all(reader.done() for reader in self.moved)
        return not lent and not self.table.unread and gathered


class Reclaimer:
    """Blocks are free after the last reader of their payload pages. What will still be lent from them is known when the tokens of
    the steps in flight are. The steps themselves are no reason to wait: who gets the blocks writes them on the same stream, later.

    Payload that a consumer is slow to take is spilled where its blocks are wanted.
    """

    def __init__(self, pool: BlockPool, spiller: Spiller) -> None:
        self._pool = pool
        self._spiller = spiller
        self._leaving: list[_Leaving] = []
        self._spilled: list[_Spilled] = []

    @property
    def waiting(self) -> int:
        """Tables that are not free yet."""
        return len(self._leaving)

    @property
    def tables(self) -> list[BlockTable]:
        """Tables whose blocks are about to be released."""
        return [leaving.table for leaving in self._leaving]

    @property
    def spilled(self) -> int:
        """Spilled payloads that somebody may still read."""
        return len(self._spilled)

    @property
    def progressing(self) -> bool:
        """Whether blocks will become free without anybody's help: nothing but launched work holds them."""
        return any(all(lent.hold.released for lent in leaving.table.lent) for leaving in self._leaving)

    def add_table(self, table: BlockTable) -> None:
        """Owns the table from here on."""
        self._leaving.append(_Leaving(table, []))
        self.tick()

    def relieve(self) -> tuple[bool, list[tuple[str, Exception]]]:
        """Spills what leaving tables lend to consumers that have not taken it.

        Returns whether blocks came free, or will by themselves, and the requests whose payload could not be moved.
        """
        failures: list[tuple[str, Exception]] = []
        for leaving in self._leaving:
            try:
                self._spill(leaving)
            except Exception as error:
                failures.append((leaving.table.owner, error))
        return self.tick() or self.progressing, failures

    def tick(self) -> bool:
        """Returns whether anything became free."""
        self._spilled = [item for item in self._spilled if not item.hold.free]
        free = [item for item in self._leaving if item.free]
        for leaving in free:
            self._pool.release(leaving.table.blocks.tolist())
            self._leaving.remove(leaving)
        return bool(free)

    def clear(self) -> None:
        """Forgets everything: the device is idle and the stage is closing."""
        self._leaving.clear()
        self._spilled.clear()

    def _spill(self, leaving: _Leaving) -> None:
        lent = leaving.table.lent
        owners = {id(part): one.hold for one in lent if not one.hold.released for part in one.slices}
        gone: set[int] = set()
        for slices in _by_pages(one for one in lent if not one.hold.released):
            for spilled in self._spiller.spill(slices) if self._spiller.ready else ():
                hold = owners[id(spilled.part)]
                leaving.moved.append(spilled.reader)
                self._spilled.append(_Spilled(hold, spilled.memory))
                gone.add(id(spilled.part))
        kept = ((one.hold, [part for part in one.slices if id(part) not in gone]) for one in lent)
        leaving.table.lent = deque(Lent(hold, slices) for hold, slices in kept if slices)


def _by_pages(lents: Iterable[Lent]) -> list[list[PageSlice]]:
    groups: dict[int, list[PageSlice]] = {}
    for lent in lents:
        for part in lent.slices:
            groups.setdefault(id(part.pages), []).append(part)
    return list(groups.values())
