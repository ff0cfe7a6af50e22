"""What happens in mixed traffic besides what stages count themselves."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import Tensor

from omni.connector.pieces import ByteMemory, PayloadLayout
from omni.connector.pool import PoolPiece, PoolReceiver, PoolSender
from omni.connector.pool.sender import PayloadRange
from omni.device import Event
from omni.engine.credit import Credit
from omni.engine.peer_messages import ToConsumer
from omni.engine.peers import EngineEdges

POOLS = frozenset({"views", "copied pieces", "full pools"})
"""What else is counted where payloads go through pools: those that are read in the pool; pieces that are copied out of it; pieces
that found the pool full."""
APART = frozenset({"early messages"})
"""And between two engines: messages for a request that has not arrived yet."""
HAPPENS = frozenset({"joins", "aborts", "pauses and resumes", "stalls", "constrained", "scored", "ran ahead"})
"""Counters besides the stages' own totals.

joins, aborts, stalls: while others are there. pauses and resumes: of producers, for slow consumers. constrained: requests that
wait for their host processors, in each round. scored: log-probabilities. ran ahead: rounds with several steps of a stage in flight.
"""


@contextmanager
def counting(happened: Counter[str]) -> Iterator[None]:
    """Counts pauses and resumes of producers, and what happens in pools and between engines."""
    report, view, copy = Credit.report, PoolReceiver.views_of, PoolReceiver.copy
    acquire, keep = PoolSender.acquire, EngineEdges.keep

    def counted(credit: Credit) -> bool:
        news = report(credit)
        happened["pauses and resumes"] += news
        return news

    def viewed(receiver: PoolReceiver, piece: PoolPiece) -> ByteMemory | None:
        seen = view(receiver, piece)
        happened["views"] += seen is not None
        return seen

    def copied(receiver: PoolReceiver, piece: PoolPiece, into: Tensor) -> Event:
        happened["copied pieces"] += 1
        return copy(receiver, piece, into)

    def acquired(
        sender: PoolSender, payload_range: PayloadRange, layout: PayloadLayout | None, pieces: int
    ) -> PoolPiece | None:
        piece = acquire(sender, payload_range, layout, pieces)
        happened["full pools"] += piece is None
        return piece

    def kept(ends: EngineEdges, place: str, message: ToConsumer) -> None:
        happened["early messages"] += 1
        keep(ends, place, message)

    with (
        patch.object(Credit, "report", counted),
        patch.object(PoolReceiver, "views_of", viewed),
        patch.object(PoolReceiver, "copy", copied),
        patch.object(PoolSender, "acquire", acquired),
        patch.object(EngineEdges, "keep", kept),
    ):
        yield
