"""The ranks of a stage in one thread: each has a simulated device of its own, and all devices share one time. Transfer between
ranks is late, as a seed decides, and its accesses to memory are checked."""

from collections import deque
from collections.abc import Callable, Sequence

from omni.parallel import EqualRanks, PipelineRank, RankLayout, Ranks
from omni.testing.simulation.collectives import RankGroup, SimulatedCommunicator
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.lanes import DelayedLane, Delays
from omni.testing.simulation.shared_time import SharedTime
from omni.testing.simulation.simulation import Simulation
from omni.testing.simulation.stream import Clock

_MOST_ROUNDS = 24
"""Rounds that a rank may be behind the others."""


class SimulatedChannel:
    """A `RankChannel` of ranks on simulated devices, whose messages are late."""

    descriptor = None

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._others: list[tuple[SimulatedChannel, DelayedLane]] = []
        self._arrived: deque[tuple[bytes, Clock]] = deque()
        assert device.schedule is not None
        self._delays = Delays(device.schedule)

    def connect(self, other: "SimulatedChannel", name: str) -> None:
        self._others.append((other, DelayedLane(name, self._device.shared_time)))

    def send(self, message: bytes) -> None:
        clock = self._device.host_clock()
        for other, lane in self._others:
            at = self._device.now + self._delays.draw()
            lane.add(lambda at=at: at, lambda other=other: other._arrived.append((message, clock)))  # type: ignore[misc]

    def take(self) -> bytes | None:
        if not self._arrived:
            return None
        message, clock = self._arrived.popleft()
        self._device.host_learns(clock)
        return message

    def close(self) -> None:
        pass


class SimulatedRanks:
    """devices, ranks: by rank. blocks: whether transfers occupy their stream, as on CUDA."""

    def __init__(
        self,
        layout: RankLayout,
        seed: int,
        *,
        without: str | None = None,
        without_at: int | None = None,
        without_on: str | None = None,
        blocks: bool | None = None,
        device: type[SimulatedDevice] = SimulatedDevice,
    ) -> None:
        """without, without_on: as of `SimulatedDevice`; also a phase, by module and name, whose `PendingReceive.wait` is left out.
        without_at: at this rank only. blocks: None for the seed's choice. device: the class of the devices."""
        shared_time = SharedTime(seed)
        assert shared_time.schedule is not None
        self.random = shared_time.schedule.random
        drawn = self.random.random() < 0.5
        self.blocks = drawn if blocks is None else blocks
        self.devices = [
            device(
                without=without if without_at in (None, rank) else None, without_on=without_on, shared_time=shared_time
            )
            for rank in range(layout.size)
        ]
        for each in self.devices:
            each.transfers_block = self.blocks
            each.phases_pause = layout.tensor > 1

        def group(name: str, ranks: Sequence[int]) -> RankGroup:
            return RankGroup(name, [self.devices[rank] for rank in ranks], shared_time, self.blocks)

        everyone = range(layout.size)
        shared = group("inputs", everyone)
        channels = [SimulatedChannel(each) for each in self.devices]
        for rank in everyone[1:]:
            channels[0].connect(channels[rank], f"messages 0->{rank}")
        groups: dict[tuple[str, int], RankGroup] = {}
        for shard in range(layout.tensor):
            column = sorted((r for r in everyone if r % layout.tensor == shard), key=layout.position)
            for name in ("hidden", "tokens"):
                groups[name, shard] = group(f"{name} {shard}", column)
        for position in range(layout.pipeline):
            row = [rank for rank in everyone if layout.position(rank) == position]
            groups["tensor", position] = group(f"tensor {position}", row)
        self.ranks: list[Ranks] = []
        for rank in everyone:
            position, shard = layout.position(rank), rank % layout.tensor
            tensor, pipeline = None, None
            if layout.tensor > 1:
                tensor = SimulatedCommunicator(groups["tensor", position], shard)
            if layout.pipeline > 1:
                hidden, tokens = (SimulatedCommunicator(groups[name, shard], position) for name in ("hidden", "tokens"))
                pipeline = PipelineRank(position=position, size=layout.pipeline, hidden=hidden, tokens=tokens)
            own = EqualRanks(
                rank=rank,
                size=layout.size,
                communicator=SimulatedCommunicator(shared, rank),
                channel=channels[rank],
                tensor=tensor,
                pipeline=pipeline,
            )
            self.ranks.append(own)

    def simulation(self, ticks: Sequence[Callable[[], bool]], idle: Callable[[], bool]) -> Simulation:
        """A simulation of the ranks' engines. ticks: one of each rank. A round has some of the ranks tick, in any order; the seed
        decides which, and how slow each one is."""
        chances = [self.random.choice((1.0, 0.7, 0.2)) for _ in ticks]
        behind = [0] * len(ticks)

        def tick() -> bool:
            moved = False
            for rank in self.random.sample(range(len(ticks)), len(ticks)):
                behind[rank] += 1
                if behind[rank] >= _MOST_ROUNDS or self.random.random() < chances[rank]:
                    behind[rank] = 0
                    moved |= ticks[rank]()
            return moved

        return Simulation(self.devices[0], tick, idle)

    def close(self) -> None:
        for device in self.devices:
            device.close()

    def assert_no_races(self) -> None:
        """Raises AssertionError if the device of any rank found a race."""
        for device in self.devices:
            device.assert_no_races()
