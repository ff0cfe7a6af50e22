"""Engines that start together: the places of a model, and the order in which their engines load."""

import select
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from omni.engine import device_of
from omni.engine.memory import DeviceShare
from omni.errors import LostRankError, StageError
from omni.process.remote import RemoteEngine

LOST_RANK_SECONDS = 5.0
"""After a rank reports another one as lost: time for the report of the cause, before the rank's report counts as the error."""


@dataclass(slots=True, eq=False)
class StartGroup:
    """Engines that start together, and are all started again if one ends: those with ranks of one stage, or a single one.

    engines: that of rank 0 first. restarts: since they last ran for `_STEADY_SECONDS`.
    """

    engines: list["PlacedEngine"] = field(default_factory=list)
    restarts: int = 0
    restarting: bool = False

    @property
    def name(self) -> str:
        return ", ".join(placed.place for placed in self.engines)


@dataclass(slots=True, eq=False)
class PlacedEngine:
    """A place and its engine. engine: the present one, or the last. up: whether it takes requests. since: of the engine.

    lost: why it does not run. failure: why it is not started again. coming: the engine that is being loaded in its place.
    """

    place: str
    stages: tuple[str, ...]
    share: DeviceShare
    engine: RemoteEngine
    group: StartGroup
    up: bool = False
    since: float = 0.0
    lost: StageError | None = None
    failure: StageError | None = None
    coming: RemoteEngine | None = None


def rounds_of(groups: Sequence[StartGroup]) -> list[list[StartGroup]]:
    """The groups in the order in which they load: those of one round at the same time, no two of them on one device."""
    rounds: list[list[StartGroup]] = []
    following: dict[torch.device, int] = {}
    for group in groups:
        devices = {device_of(placed.place) for placed in group.engines}
        number = max(following.get(device, 0) for device in devices)
        following |= dict.fromkeys(devices, number + 1)
        rounds += [[] for _ in range(number + 1 - len(rounds))]
        rounds[number].append(group)
    return rounds


def wait_ready(engines: Sequence[RemoteEngine]) -> None:
    """Waits until all engines have loaded their stages. Raises the first error. A `LostRankError` is raised only if no other engine
    reports an error within `LOST_RANK_SECONDS`: the lost rank's own error states the cause."""
    waiting = {engine.descriptor: engine for engine in engines}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    lost: LostRankError | None = None
    while waiting:
        ready = poll.poll(None if lost is None else LOST_RANK_SECONDS * 1000)
        if lost is not None and not ready:
            raise lost
        for descriptor, _ in ready:
            try:
                if not waiting[descriptor].take_start():
                    continue
            except LostRankError as error:
                lost = lost or error
            poll.unregister(descriptor)
            del waiting[descriptor]
    if lost is not None:
        raise lost
