"""Resources shared by engines with ranks of one stage: memory for the ranks' store, and sockets from rank 0 to the others."""

import os
from collections.abc import Mapping

from omni.engine import Placement
from omni.ipc import Channel
from omni.process.remote import RemoteEngine


def join_ranks(placement: Placement, engines: Mapping[str, RemoteEngine]) -> None:
    """Gives it to engines that start together, by place. Each start has resources of its own, so data of an earlier start is never
    read. Raises OSError if the system lacks descriptors."""
    for stage, places in placement.ranks.items():
        if places[0] not in engines:
            continue
        leader, *followers = (engines[place] for place in places)
        store = os.memfd_create("omni-ranks", os.MFD_CLOEXEC)
        try:
            for engine in (leader, *followers):
                engine.join(stage, None, store)
        finally:
            os.close(store)
        for rank, follower in enumerate(followers, 1):
            first, second = Channel.pair()
            with first, second:
                leader.join(stage, rank, first.fileno())
                follower.join(stage, 0, second.fileno())
