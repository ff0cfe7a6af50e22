"""The happens-before checker: records accesses, and reports unordered ones."""

from dataclasses import dataclass, field

from torch import Tensor

from omni.testing.simulation.access import Access, Race
from omni.testing.simulation.clock import HOST, Clock, advance, known
from omni.testing.simulation.images import Image, SlotImages
from omni.testing.simulation.naming import name_buffer
from omni.testing.simulation.region import Region, Selection
from omni.testing.simulation.shadow import Shadow, key_of
from omni.testing.simulation.stream import Launched, SimulatedStream


@dataclass(slots=True)
class _Running:
    """A running phase. numbers: of its accesses, by operation and kind. seen: regions already accessed so."""

    stream: SimulatedStream
    launched: Launched
    numbers: dict[tuple[str, bool], int] = field(default_factory=dict)
    seen: set[tuple[object, ...]] = field(default_factory=set)


class Checker:
    """Keeps shadow memory of every storage that phases or the host access, from the first access to the storage's end.

    host: the host's clock. races: the races found, each pair of places once.
    """

    def __init__(self) -> None:
        self.host: Clock = [0]
        self.races: list[Race] = []
        self._places: set[tuple[str, ...]] = set()
        self._accesses: list[Access] = [Access(HOST, 0, "", "nobody", 0, "", False)]
        self._shadows: dict[int, Shadow] = {}
        self._streams: dict[int, SimulatedStream] = {}
        self._running: _Running | None = None
        self._slots = SlotImages()

    def add(self, stream: SimulatedStream) -> None:
        self._streams[stream.agent] = stream

    def host_step(self) -> None:
        """Separates the host's earlier accesses from its later ones."""
        advance(self.host, HOST, self.host[HOST] + 1)

    def images(self, buffers: tuple[object, ...]) -> list[Image]:
        """Images of the host slots among a launched phase's buffers."""
        return self._slots.take(buffers)

    def begin(self, stream: SimulatedStream, launched: Launched) -> None:
        """Attributes accesses until `end` to this phase."""
        running = self._running = _Running(stream, launched)
        for image in launched.images:
            byte = self._slots.changed(image)
            if byte is not None:
                late = Access(HOST, self.host[HOST], "", "the host", 0, "the slot's array, after the launch", True)
                used = self._accesses[self._number(running, "using the slot", False)]
                self._report(late, used, self._name(image.tensor), byte)

    def end(self) -> None:
        self._running = None

    def touch(self, tensor: Tensor, writes: bool, operation: str, selection: Selection | None = None) -> None:
        """Records that the running phase reads or writes the tensor, or the part that `selection` selects."""
        running = self._running
        if running is None or not tensor.numel():
            return
        key = key_of(tensor)
        shadow = self._shadow_of(key, tensor)
        if shadow.born == running.launched.number:
            return
        if selection is None:
            same = (key, writes, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.itemsize)
            if same in running.seen:
                return
            running.seen.add(same)
        if writes:
            self._slots.written(key)
        region = Region.of(tensor, shadow.size, selection)
        number = self._number(running, operation, writes)
        self._check(shadow, region, number, running.launched.clock, tensor)
        shadow.mark((running.stream.agent, writes), region, number)

    def made(self, tensor: Tensor, operation: str) -> None:
        """Records a tensor that the running phase made. A no-op for a known storage."""
        key = key_of(tensor)
        running = self._running
        if running is None or key in self._shadows:
            return
        agent = running.stream.agent
        shadow = self._watch(key, tensor, agent, running.launched.number)
        shadow.latest[agent, True] = self._number(running, operation, True)

    def allocated(self, tensor: Tensor, stream: SimulatedStream) -> None:
        """Records a tensor that the host allocated for a stream, whose earlier phases may still use the memory."""
        shadow = self._watch(key_of(tensor), tensor, stream.agent, 0)
        last = Access(
            stream.agent, stream.tick, stream.name, f"what stream {stream.name!r} had before", 0, "empty", True
        )
        shadow.latest[stream.agent, True] = self._add(last)

    def host_writes(self, tensor: Tensor) -> None:
        self._host_touch(tensor, True, "HostSlot.take")
        if tensor.numel():
            self._slots.handed_out(key_of(tensor))

    def host_reads(self, tensor: Tensor) -> None:
        self._host_touch(tensor, False, "HostSlot.read")

    def _host_touch(self, tensor: Tensor, writes: bool, operation: str) -> None:
        if not tensor.numel():
            return
        shadow = self._shadow_of(key_of(tensor), tensor)
        region = Region.of(tensor, shadow.size, None)
        number = self._add(Access(HOST, self.host[HOST], "", "the host", 0, operation, writes))
        self._check(shadow, region, number, self.host, tensor)
        shadow.mark((HOST, writes), region, number)

    def _shadow_of(self, key: int, tensor: Tensor) -> Shadow:
        shadow = self._shadows.get(key)
        if shadow is None:
            return self._watch(key, tensor, None, 0)
        shadow.grow(tensor.untyped_storage().nbytes())
        return shadow

    def _watch(self, key: int, tensor: Tensor, home: int | None, born: int) -> Shadow:
        shadow = self._shadows[key] = Shadow(tensor, self._gone, home, born)
        return shadow

    def _number(self, running: _Running, operation: str, writes: bool) -> int:
        kind = (operation, writes)
        number = running.numbers.get(kind)
        if number is None:
            launched, stream = running.launched, running.stream
            by = launched.phase.__name__
            access = Access(stream.agent, launched.tick, stream.name, by, launched.number, operation, writes)
            number = running.numbers[kind] = self._add(access)
        return number

    def _add(self, access: Access) -> int:
        self._accesses.append(access)
        return len(self._accesses) - 1

    def _check(self, shadow: Shadow, region: Region, number: int, clock: Clock, tensor: Tensor) -> None:
        second = self._accesses[number]
        for kind, last in shadow.latest.items():
            agent, wrote = kind
            if agent == second.agent or not (wrote or second.writes):
                continue
            if self._accesses[last].tick <= known(clock, agent):
                continue
            last = shadow.last(kind, region)
            first = self._accesses[last]
            if first.tick > known(clock, agent):
                self._report(first, second, self._name(tensor), shadow.first_byte(kind, region, last))

    def _gone(self, shadow: Shadow) -> None:
        """Handles the end of a storage: later launches on its home stream may get its memory."""
        del self._shadows[shadow.key]
        self._slots.gone(shadow.key)
        if shadow.home is None or (len(shadow.latest) == 1 and (shadow.home, True) in shadow.latest):
            return
        after = self._streams[shadow.home].clock
        for (agent, _), last in shadow.latest.items():
            access = self._accesses[last]
            if agent not in (HOST, shadow.home) and access.tick > max(known(self.host, agent), known(after, agent)):
                home = self._streams[shadow.home].name
                free = Access(HOST, self.host[HOST], home, "the host", 0, f"giving it back to stream {home!r}", True)
                self._report(access, free, f"{shadow.size} bytes allocated on stream {home!r}", 0)

    def _name(self, tensor: Tensor) -> str:
        running = self._running
        if running is None:
            return f"a host slot ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
        return name_buffer(running.launched.phase, running.launched.buffers, tensor)

    def _report(self, first: Access, second: Access, buffer: str, byte: int) -> None:
        race = Race(buffer, byte, first, second)
        if race.places not in self._places:
            self._places.add(race.places)
            self.races.append(race)
