"""Connects the ranks of a stage at the start of their engines.

The process that starts the engines gives each of them the same memory, which has the ranks' store, and the ends of sockets between
rank 0 and the others (`RankResources`). The memory and the sockets have no names, so they disappear with the processes.
"""

import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

import torch
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

from omni.errors import LostRankError
from omni.parallel.channel import MessageCounter, ReceivingChannel, SendingChannel
from omni.parallel.communicator import Communicator
from omni.parallel.ranks import PipelineRank, RankChannel, RankLayout, Ranks
from omni.parallel.torch_group import names_of, open_communicator

START_SECONDS = 600.0
"""Time that a rank waits for the others at start: they may read their weights at different speeds. If one rank's process ends, the
others are ended at once."""
STEP_SECONDS = 60.0
"""Time that a rank waits for the others in a collective, for one of them to read its messages, or for the end of a step."""


@dataclass(slots=True)
class RankResources:
    """Resources that a rank was given. store: descriptor of the memory, -1 before it is given. sockets: to other ranks, by rank."""

    store: int = -1
    sockets: dict[int, socket.socket] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRanks(Ranks):
    """Ranks that share a store."""

    store: Store
    calls: Counter[str] = field(default_factory=Counter)

    def all_reduce_min(self, name: str, number: int) -> int:
        return min(map(int, self.all_gather_text(name, str(number))))

    def all_gather_text(self, name: str, text: str) -> list[str]:
        self.calls[name] += 1
        return _all_gather_text(self.store, self.rank, self.size, f"{name}/{self.calls[name]}", text)


def open_ranks(
    rank: int,
    layout: RankLayout,
    device: torch.device,
    resources: RankResources,
    counters: Mapping[int, MessageCounter] | None = None,
) -> Ranks:
    """counters: by rank, as the sockets; None if no other stage has ranks in the same engines. Waits for the other ranks. Raises
    LostRankError if one is missing."""
    # Every access opens the file: its descriptor is the only name of the memory, and stays open.
    size = layout.size
    store = FileStore(f"/proc/self/fd/{resources.store}", size)
    texts = PrefixStore("texts", store)
    _all_gather_text(texts, rank, size, "open", "")

    def open_group(
        name: str, members: Sequence[int], transfers: Iterable[tuple[int, int]] = (), *, collectives: bool = False
    ) -> Communicator:
        return open_communicator(
            PrefixStore(name, store),
            members.index(rank),
            len(members),
            device,
            STEP_SECONDS,
            collectives=collectives,
            transfers=transfers,
            names=names_of(members, size),
        )

    communicator = open_group("all", range(size), ((0, other) for other in range(1, size)))
    position, shard = layout.position(rank), rank % layout.tensor
    tensor, pipeline = None, None
    if layout.tensor > 1:
        tensor = open_group(f"layers {position}", range(rank - shard, rank - shard + layout.tensor), collectives=True)
    if layout.pipeline > 1:
        last = layout.pipeline - 1
        column = range(shard, size, layout.tensor)[::-1]  # by position
        pipeline = PipelineRank(
            position=position,
            size=layout.pipeline,
            hidden=open_group(f"hidden {shard}", column, pairwise(range(layout.pipeline))),
            tokens=open_group(f"tokens {shard}", column, ((last, other) for other in range(last))),
        )
    sockets = resources.sockets
    counters = counters if counters is not None else {other: MessageCounter() for other in sockets}
    channel: RankChannel
    channel = ReceivingChannel(sockets[0], counters[0]) if rank else SendingChannel(sockets, counters, STEP_SECONDS)
    return StoreRanks(
        rank=rank,
        size=size,
        communicator=communicator,
        channel=channel,
        tensor=tensor,
        pipeline=pipeline,
        step_seconds=STEP_SECONDS,
        store=texts,
    )


def _all_gather_text(store: Store, rank: int, size: int, name: str, text: str) -> list[str]:
    store.set(f"{name}/{rank}", text)
    deadline = time.monotonic() + START_SECONDS
    texts = []
    for other in range(size):
        left = max(0.0, deadline - time.monotonic())
        try:
            store.wait([f"{name}/{other}"], timedelta(seconds=left))
        except RuntimeError as error:
            raise LostRankError(f"rank {other} of {size} has not answered for {START_SECONDS:g} s at start") from error
        texts.append(store.get(f"{name}/{other}").decode())
    return texts
