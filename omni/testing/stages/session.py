"""One worker under test: requests that the suite opens, feeds and ends, and consumers of the worker's outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from omni.connector import Pending, Ref
from omni.device import COMPLETED, Device, Event
from omni.payload import PageSlice, Payload
from omni.sampling import SamplingParams
from omni.stage import Abort, Done, Ended, Failed, Feed, Lease, Open, Produced, StageWorker
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.stages.accesses import copy, fetch, scatter, spoil
from omni.testing.stages.devices import OWN
from omni.testing.stages.errors import calling, require
from omni.testing.stages.loan import Loan, lend
from omni.testing.stages.values import Values
from omni.testing.stages.watch import RELEASE, WorkerWatch

SOURCE = "check"
OTHER = "other"
"""A second producer, without payloads."""
_QUIET = 12
"""Ticks without progress, after which none is expected."""
_MOST_TICKS = 20_000
_ENDS = (
    "an unfinished request needs an event to come, or a free slot; see that advance polls every event and tries again"
)


class WatchedLease(Lease):
    """acquired: whether it was."""

    def __init__(self, loan: tuple[Ref, Pending], payload: Payload) -> None:
        self.acquired = False
        self.ref, pending = loan
        super().__init__(pending, [payload])

    def acquire(self) -> None:
        self.acquired = True
        super().acquire()


@dataclass(eq=False)
class Input:
    """A payload that was fed. lease: None for one of the front end's. memory: of its tensors, which the suite overwrites
    when it is freed."""

    feed: Feed
    lease: WatchedLease | None
    memory: list[Tensor]
    spoiled: bool = False


@dataclass(eq=False)
class Reading:
    """An output that is read. since: the tick in which it came. host: copies of its tensors, under way until `end`."""

    produced: Produced
    loan: Loan
    since: int
    host: dict[str, Tensor] = field(default_factory=dict)
    end: Event | None = None


class StageSession:
    """ends: by request. read_after: ticks that consumers let pass before they read an output. guard: entered while the
    worker ticks."""

    def __init__(
        self,
        worker: StageWorker,
        device: Device,
        sampling: SamplingParams,
        read_after: int = 0,
        most: dict[str, int] | None = None,
    ) -> None:
        """most: as of `WorkerWatch`."""
        self.guard: Callable[[Device], AbstractContextManager[object]] = _no_guard
        self.worker = worker
        self.device = device
        self.ends: dict[str, Done | Failed] = {}
        self.inputs: dict[str, list[Input]] = {}
        self.readings: dict[str, list[Reading]] = {}
        self.aborted: set[str] = set()
        self.opened: list[str] = []
        self.ticks = 0
        self._sampling = sampling
        self._read_after = read_after
        self._producer = device.stream(f"{OWN}producer")
        self._consumer = device.stream(f"{OWN}consumer")
        self._watch = WorkerWatch(worker, {} if most is None else most)

    # Actions of the orchestrator.

    def open(self, name: str, *others: str, order: tuple[int, int] | None = None) -> None:
        """others: producers beside the suite. order: by default in the order of opening."""
        self.opened.append(name)
        sources = frozenset({SOURCE, *others})
        self.worker.inbox.append(Open(name, self._sampling, sources, order=order or (0, len(self.opened))))

    def feed(self, name: str, sample: Payload, ready: Event | None = None) -> Input:
        """Lends a payload from memory of its own, on the device. ready: of the check, which calls `fill` before."""
        memory = {key: self._empty_like(value) for key, value in sample.tensors.items()}
        payload = Payload(sample.meta, memory)
        given = Input(Feed(name, payload, COMPLETED), None, [_base(each) for each in memory.values()])
        if ready is None:
            self.fill(given, sample)
            ready = self.device.record(self._producer) if memory else COMPLETED
        else:
            for base in given.memory:
                self.device.launch(self._producer, spoil, base)
        given.lease = WatchedLease(lend(payload, ready), payload)
        given.feed = Feed(name, payload, ready, given.lease)
        self.worker.inbox.append(given.feed)
        self.inputs.setdefault(name, []).append(given)
        return given

    def feed_host(self, name: str, sample: Payload) -> None:
        """As the front end does: host memory, no lease."""
        self.worker.inbox.append(Feed(name, sample, COMPLETED))

    def fill(self, given: Input, sample: Payload) -> None:
        """Writes the values of a payload."""
        for into, value in zip(given.feed.payload.tensors.values(), sample.tensors.values(), strict=True):
            if isinstance(value, PageSlice):
                assert isinstance(into, PageSlice)
                rows_nD, slots_n = value.rows(torch.from_numpy(value.slots)), torch.from_numpy(into.slots)
                self.device.launch(self._producer, scatter, into.pages, slots_n, rows_nD)
            else:
                assert isinstance(into, Tensor)
                self.device.launch(self._producer, copy, into, value)

    def end(self, name: str, source: str = SOURCE) -> None:
        self.worker.inbox.append(Ended(name, source))

    def abort(self, name: str) -> None:
        if name not in self.ends:
            self.aborted.add(name)
            self.worker.inbox.append(Abort(name))

    def script(
        self, name: str, sample: Sequence[Payload], *, front_end: bool = False, order: tuple[int, int] | None = None
    ) -> Iterator[None]:
        """Opens a request, feeds it and ends it, one message at each `next`."""
        self.open(name, order=order)
        yield
        for payload in sample:
            self.feed_host(name, payload) if front_end else self.feed(name, payload)
            yield
        self.end(name)

    def script_of_two(self, name: str, sample: Sequence[Payload]) -> Iterator[None]:
        """As `script`, with a second producer, which ends before the first input."""
        self.open(name, OTHER)
        yield
        self.end(name, OTHER)
        yield
        for payload in sample:
            self.feed(name, payload)
            yield
        self.end(name)

    # Time.

    def tick(self) -> bool:
        """One tick of the worker, and of its neighbours."""
        remedy = "catch the errors of a request's work, and end the request with `fail`"
        with calling("StageWorker.tick", remedy), self.guard(self.device):
            moved = self.worker.tick()
        require(
            isinstance(moved, bool),
            "tick returns whether anything happened (a bool)",
            "return True or False from advance",
        )
        self.ticks += 1
        while self.worker.outbox:
            self._take(self.worker.outbox.popleft())
        moved |= self._read() | self._spoil()
        if not self.worker.inbox:
            self._watch.look([repr(name) for name in self.opened if self._is_there(name)], list(self._unreleased()))
        return moved

    def play(
        self,
        scripts: Mapping[str, Iterator[None]],
        done: Callable[[], bool] | None = None,
        *,
        apart: int = 0,
        act: Callable[[int], None] = lambda tick: None,
        until: int | None = None,
    ) -> None:
        """Ticks until every request is finished, or `done`. apart: ticks between two messages of a request; 0 sends all at
        once. act: called before each tick with its number. until: the number of a tick before which it stops."""
        left = dict(scripts)
        names, first, quiet = list(scripts), self.ticks, 0
        while not (self.finished(*names) if done is None else done()) or left:
            tick = self.ticks - first
            if until is not None and tick >= until:
                return
            for name in list(left):
                while name in left and (not apart or tick % apart == 0):
                    if next(left[name], self) is self:
                        del left[name]
                    if apart:
                        break
            act(tick)
            quiet = 0 if self.advance(quiet) or left else quiet + 1
            require(
                quiet < 5 * _QUIET and tick < _MOST_TICKS,
                f"requests end: the worker stalled, and {self._unfinished()} "
                f"{'are' if self._unfinished().count(',') else 'is'} not over (the worker holds {self.held})",
                _ENDS,
            )

    def advance(self, quiet: int = 0) -> bool:
        """A tick, and some time of the device."""
        device, moved = self.device, self.tick()
        if isinstance(device, SimulatedDevice):
            before = device.done
            if device.schedule is None:
                device.run(operations=1)
            else:
                device.host_step()
                if quiet > 3:
                    device.skip()
            moved |= device.done > before
        return moved

    def settle(self) -> None:
        """Until no further progress occurs."""
        quiet = 0
        for _ in range(_MOST_TICKS):
            quiet = 0 if self.advance(quiet) else quiet + 1
            if quiet >= _QUIET:
                return
        require(
            False,
            "tick of a worker without work returns False",
            "return from advance whether anything happened: the engine's thread naps only then",
        )

    # Checks afterwards.

    @property
    def held(self) -> dict[str, int]:
        return self._watch.held

    def finished(self, *names: str) -> bool:
        """Whether requests have ended or were aborted, and consumers have read all outputs."""
        ended = all(name in self.ends or name in self.aborted for name in names)
        return ended and all(each.loan.freed for name in names for each in self.readings.get(name, ()))

    def values(self, name: str) -> Values:
        """The values that consumers read."""
        read = [each for each in self.readings.get(name, []) if each.end is not None]
        return Values.of([(each.produced.payload.meta, each.host) for each in read])

    def require_free(self, when: str) -> None:
        """Requires that no resources are held, and that every input is released."""
        self.settle()
        require(
            not self.held,
            f"usage is zero when no request is there; {when} it is {self.held}",
            "free in `drop` all that a request holds, however it ends, and count in `usage` the resources held now",
        )
        self.require_released(when)

    def require_released(self, when: str) -> None:
        """Every input that the worker has taken is released."""
        for name, inputs in self.inputs.items():
            for number, given in enumerate(inputs):
                if given.feed in self.worker.inbox:
                    continue
                self._require_released(name, number, given, when)

    def _require_released(self, name: str, number: int, given: Input, when: str) -> None:
        assert given.lease is not None
        tensors = bool(given.feed.payload.tensors)
        what = f"input {number} of request {name!r} ({type(given.feed.payload.meta).__name__}), {when}"
        require(
            given.lease.acquired and given.lease.ref.released,
            f"every input is released: {what}, is not",
            RELEASE,
        )
        require(
            not tensors or given.lease.ref.freed,
            f"the event that an input is released with comes: {what}",
            "record it on the stream of the last use",
        )

    # Neighbours.

    def _take(self, message: object) -> None:
        require(
            isinstance(message, Produced | Done | Failed),
            f"the outbox has Produced, Done and Failed, not {type(message).__name__}",
            "put outputs into Produced(request_id, payload, ready)",
        )
        assert isinstance(message, Produced | Done | Failed)
        name = message.request_id
        require(
            name not in self.ends and name not in self.aborted,
            f"a request has no output after its end: {type(message).__name__} of {name!r} came after it",
            "remember work in flight by request, and drop late results of one that is gone",
        )
        if not isinstance(message, Produced):
            self.ends[name] = message
            return
        require(
            isinstance(message.payload, Payload) and isinstance(message.payload.meta, msgspec.Struct),
            "an output is a Payload with a msgspec.Struct",
            "give Payload(meta, tensors)",
        )
        loan = Loan(message.payload, message.ready)
        message.add(loan)
        message.close()
        self.readings.setdefault(name, []).append(Reading(message, loan, self.ticks))

    def _read(self) -> bool:
        moved = False
        for reading in (each for readings in self.readings.values() for each in readings):
            if reading.end is None and self._readable(reading):
                self._launch(reading)
                moved = True
        return moved

    def _readable(self, reading: Reading) -> bool:
        tensors = reading.produced.payload.tensors.values()
        moved = all(each.moved.done() for each in tensors if isinstance(each, PageSlice))
        return self.ticks - reading.since >= self._read_after and moved and reading.produced.ready.done()

    def _launch(self, reading: Reading) -> None:
        tensors = reading.produced.payload.tensors
        for key, tensor in tensors.items():
            slots_n = torch.from_numpy(tensor.slots.copy()) if isinstance(tensor, PageSlice) else None
            reading.host[key] = self.device.host_tensor(tuple(tensor.shape), tensor.dtype)
            self.device.launch(self._consumer, fetch, reading.host[key], tensor, slots_n)
        reading.end = self.device.record(self._consumer) if tensors else COMPLETED
        for tensor in tensors.values():
            if isinstance(tensor, PageSlice):
                tensor.gathered(reading.end)
        reading.loan.release(reading.end)

    def _spoil(self) -> bool:
        """Overwrites inputs that their consumer has freed."""
        moved = False
        for given in (each for inputs in self.inputs.values() for each in inputs):
            if not given.spoiled and given.lease is not None and given.lease.ref.freed:
                given.spoiled = moved = True
                for base in given.memory:
                    self.device.launch(self._producer, spoil, base)
        return moved

    def _empty_like(self, value: Tensor | PageSlice) -> Tensor | PageSlice:
        if isinstance(value, PageSlice):
            blocks, block, width = value.pages.shape
            pages = self.device.empty((blocks + 1, block, width), value.dtype, self._producer)
            return PageSlice(pages, value.slots + block)
        return self.device.empty(tuple(value.shape), value.dtype, self._producer)

    def _is_there(self, name: str) -> bool:
        return name not in self.ends and name not in self.aborted

    def _unreleased(self) -> Iterator[str]:
        """Inputs that the worker has taken and not released."""
        for name, inputs in self.inputs.items():
            for number, given in enumerate(inputs):
                if given.lease is not None and given.feed.payload.tensors and not given.lease.ref.released:
                    yield f"input {number} of request {name!r}"

    def _unfinished(self) -> str:
        """All requests: those that are played may have been opened before."""
        return ", ".join(repr(name) for name in self.opened if not self.finished(name)) or "a request"


def _no_guard(device: Device) -> AbstractContextManager[object]:
    return nullcontext()


def _base(tensor: Tensor | PageSlice) -> Tensor:
    return tensor.pages if isinstance(tensor, PageSlice) else tensor
