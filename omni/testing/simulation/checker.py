"""The happens-before checker: records memory accesses, and reports unordered ones."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass

import msgspec
from torch import Tensor, nn

from omni.device import Phase
from omni.testing.simulation.shadow import Image, Region, Selection, Shadow, SlotImages, key_of
from omni.testing.simulation.stream import Clock, QueuedPhase, SimulatedStream, advance, known


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """tick: of the agent's clock. by: the phase and its number among all launches, or the host. operation: torch's, or a call."""

    agent: int
    tick: int
    stream: str
    by: str
    launch: int
    operation: str
    writes: bool

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        actor = f"{self.by} (launch {self.launch}, stream {self.stream!r})" if self.launch else self.by
        return f"{actor} {verb} by {self.operation}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two unordered accesses, at least one a write, or memory freed under a running reader. byte: offset in the storage."""

    buffer: str
    byte: int
    first: Access
    second: Access

    def __str__(self) -> str:
        return f"unordered: {self.first}\n      and: {self.second}\n      buffer: {self.buffer}, byte {self.byte}"

    @property
    def places(self) -> tuple[str, ...]:
        """The identity of a race: the places of its two accesses, without their times."""
        return tuple(
            part for one in (self.first, self.second) for part in (one.stream, one.by, one.operation, str(one.writes))
        )


_DEPTH = 4


def name_buffer(phase: Phase, buffers: tuple[object, ...], tensor: Tensor) -> str:
    """Name, type and shape of a tensor that the phase accesses. No name if no argument leads to the tensor."""
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    key = key_of(tensor)
    names = list(inspect.signature(phase).parameters)
    for position, buffer in enumerate(buffers):
        name = names[position] if position < len(names) else f"argument {position}"
        for path, found in _tensors(name, buffer, _DEPTH):
            if key_of(found) == key:
                return f"{path} ({kind})"
    return f"a tensor ({kind})"


def _tensors(path: str, value: object, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_parameters())
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_buffers())
    elif depth:
        for name, part in _parts(value):
            yield from _tensors(path + name, part, depth - 1)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif is_dataclass(value):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", part) for name, part in msgspec.structs.asdict(value).items())
    else:
        try:
            own = vars(value)
        except TypeError:  # no signature
            return
        yield from ((f".{name}", part) for name, part in own.items())


@dataclass(slots=True)
class Running:
    """A running phase. numbers: the numbers of its accesses, by operation and kind. seen: regions already accessed so."""

    stream: SimulatedStream
    launched: QueuedPhase
    numbers: dict[tuple[str, bool], int] = field(default_factory=dict)
    seen: set[tuple[object, ...]] = field(default_factory=set)


class Checker:
    """Keeps shadow memory of every storage from the first access to its end. races: each pair of places once. host: its clock."""

    def __init__(self, host_agent: int = 0) -> None:
        self.host: Clock = []
        self._host_agent = host_agent
        advance(self.host, host_agent, 0)
        self.races: list[Race] = []
        self._places: set[tuple[str, ...]] = set()
        self._accesses: list[Access] = [
            Access(agent=host_agent, tick=0, stream="", by="", launch=0, operation="", writes=False)
        ]
        self._shadows: dict[int, Shadow] = {}
        self._streams: dict[int, SimulatedStream] = {}
        self._running: Running | None = None
        self._slots = SlotImages()

    def add(self, stream: SimulatedStream) -> None:
        self._streams[stream.agent] = stream

    def host_step(self) -> None:
        """Separates the host's earlier accesses from its later ones."""
        advance(self.host, self._host_agent, self._host_tick + 1)

    @property
    def _host_tick(self) -> int:
        return self.host[self._host_agent]

    def images(self, buffers: tuple[object, ...]) -> list[Image]:
        return self._slots.take(buffers)

    @property
    def running(self) -> Running:
        """The running phase. Raises AssertionError if none runs."""
        assert self._running is not None, "called outside of a phase"
        return self._running

    @contextmanager
    def attributed(self, running: Running | None) -> Iterator[None]:
        """While entered, attributes accesses to this phase; None for no phase."""
        outer, self._running = self._running, running
        try:
            yield
        finally:
            self._running = outer

    def begin(self, running: Running) -> None:
        """Checks the host slots of a phase that begins to run."""
        launched = running.launched
        for image in launched.images:
            byte = self._slots.changed(image)
            if byte is not None:
                late = Access(
                    agent=self._host_agent,
                    tick=self._host_tick,
                    stream="",
                    by="the host",
                    launch=0,
                    operation="the slot's array, after the launch",
                    writes=True,
                )
                used = self._accesses[self._number(running, "using the slot", False)]
                self._report(late, used, self._name(image.tensor), byte)

    def touch(self, tensor: Tensor, writes: bool, operation: str, selection: Selection | None = None) -> None:
        """Records that the running phase reads or writes the tensor, or the part that `selection` selects."""
        running = self._running
        if running is None:
            return
        key = key_of(tensor)
        shadow = self._shadows.get(key)
        if shadow is not None and shadow.born == running.launched.number:
            return
        if not tensor.numel():
            return
        shadow = self._shadow_of(key, tensor)
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

    def made_by_running(self, tensor: Tensor) -> bool:
        """Whether the running phase made the tensor's storage, so that `touch` records nothing."""
        shadow = self._shadows.get(key_of(tensor))
        return shadow is not None and self._running is not None and shadow.born == self._running.launched.number

    def made(self, tensor: Tensor, operation: str) -> None:
        """Records a tensor that the running phase made, unless its storage is known."""
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
            agent=stream.agent,
            tick=stream.tick,
            stream=stream.name,
            by=f"the earlier work of stream {stream.name!r}",
            launch=0,
            operation="empty",
            writes=True,
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
        number = self._add(
            Access(
                agent=self._host_agent,
                tick=self._host_tick,
                stream="",
                by="the host",
                launch=0,
                operation=operation,
                writes=writes,
            )
        )
        self._check(shadow, region, number, self.host, tensor)
        shadow.mark((self._host_agent, writes), region, number)

    def _shadow_of(self, key: int, tensor: Tensor) -> Shadow:
        shadow = self._shadows.get(key)
        if shadow is None:
            return self._watch(key, tensor, None, 0)
        shadow.grow(tensor.untyped_storage().nbytes())
        return shadow

    def _watch(self, key: int, tensor: Tensor, home: int | None, born: int) -> Shadow:
        shadow = self._shadows[key] = Shadow(tensor.untyped_storage(), self._gone)
        shadow.begin(key, tensor.itemsize, home, born)
        return shadow

    def _number(self, running: Running, operation: str, writes: bool) -> int:
        kind = (operation, writes)
        number = running.numbers.get(kind)
        if number is None:
            launched, stream = running.launched, running.stream
            by = launched.phase.__name__
            access = Access(
                agent=stream.agent,
                tick=launched.tick,
                stream=stream.name,
                by=by,
                launch=launched.number,
                operation=operation,
                writes=writes,
            )
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
        home = self._streams[shadow.home]
        for (agent, _), last in shadow.latest.items():
            access = self._accesses[last]
            if agent not in (self._host_agent, shadow.home) and access.tick > max(
                known(self.host, agent), known(home.clock, agent), known(home.come, agent)
            ):
                free = Access(
                    agent=self._host_agent,
                    tick=self._host_tick,
                    stream=home.name,
                    by="the host",
                    launch=0,
                    operation=f"giving it back to stream {home.name!r}",
                    writes=True,
                )
                self._report(access, free, f"{shadow.size} bytes allocated on stream {home.name!r}", 0)

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
