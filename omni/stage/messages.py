"""The messages of a stage worker's inbox and outbox, and the lifetime of the payload memory that two of them carry.

The messages of a request keep their order. A payload's memory belongs to its producer, from `Produced` to the last
`Feed` made of it:

| a payload is | when | by | read by |
|---|---|---|---|
| sent | an edge took it: its connector made a `Ref`, and it counts against the edge's `Credit` | `Produced.add` | |
| closed | no further edge takes it | `Produced.close` | |
| acquired | its consumer has memory for each input made of it: it no longer counts | `Feed.acquire` | `Credit` |
| released | no more reads of it are launched; it no longer moves | `Ref.released` | producer |
| free | earlier reads are complete too: the producer may reuse the memory | `Ref.freed` | producer |

Three objects represent a payload under way: the connector's `Ref` at its producer, the consumer's `Lease` on the
connector's `Pending`, and the producer's `Credit` (`omni.engine.credit`). A payload passed by reference is released and freed with
the consumer's lease. A payload that the connector copies is released once its copies are launched, and freed once they are
complete.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from omni.connector import Pending, Ref
from omni.device import COMPLETED, Event
from omni.errors import OmniError
from omni.payload import PageSlice, Payload
from omni.sampling import NO_RULES, HostRules, SamplingParams


@dataclass(frozen=True, slots=True)
class Open:
    """Opens a request at this stage.

    inputs: the edges (or `"frontend"`) that will feed it.
    order: the serving order, priority and arrival number; the lowest is served first. Unique among the engine's requests.
    cache_salt: requests of different salts share no cached state.
    sample_index: the number of this sample among those of one user request; samples with one seed draw different
        tokens.
    rules: rules on its tokens here that only the host can apply.
    hidden_states: whether an edge or a wanted output takes its `omni.payload.RequestHiddenStates`; a stage whose options have
        `hidden_layers` then produces them once, before `Done`.
    """

    request_id: str
    sampling: SamplingParams
    inputs: frozenset[str]
    _: KW_ONLY
    order: tuple[int, int] = (0, 0)
    cache_salt: str = ""
    sample_index: int = 0
    rules: HostRules = NO_RULES
    hidden_states: bool = False


class Lease:
    """A consumer's claim on one received payload, shared by the inputs that an adapter made of it. The payload is
    released once every input with tensors is, at the last one's event: one stream reads all of them, so this event
    covers them."""

    def __init__(
        self,
        pending: Pending,
        inputs: Sequence[Payload],
        on_acquired: Callable[[], None] = lambda: None,
        held: "dict[Lease, None] | None" = None,
    ) -> None:
        """inputs: if none has tensors, the payload is released at once. on_acquired: called once, when all are
        acquired. held: contains the lease until its payload is released."""
        self._pending = pending
        self._unacquired = len(inputs)
        self._unreleased = sum(1 for payload in inputs if payload.tensors)
        self._on_acquired = on_acquired
        self._held = held
        self._after: Event = COMPLETED
        if not self._unacquired:
            on_acquired()
        if not self._unreleased:
            self._end()
        elif held is not None:
            held[self] = None

    def acquire(self) -> None:
        """Acquires one more input. Nothing happens after `revoke`."""
        if not self._unacquired:
            return
        self._unacquired -= 1
        if not self._unacquired:
            self._on_acquired()

    def release(self, after: Event) -> None:
        """Releases one more input with tensors, which is not read after `after`. Nothing happens after `revoke`."""
        if not self._unreleased:
            return
        self._unreleased -= 1
        if after is not COMPLETED:
            self._after = after
        if not self._unreleased:
            self._end()

    def revoke(self) -> None:
        """The consumer is closed, and nothing that it launched still runs: releases all inputs."""
        if self._unacquired > 0:
            self._on_acquired()
        self._unacquired = self._unreleased = 0
        self._after = COMPLETED
        self._end()

    def _end(self) -> None:
        if self._held is not None:
            self._held.pop(self, None)
        self._pending.release(self._after)


@dataclass(slots=True, eq=False)
class Feed:
    """An input. Its device tensors may be used from `arrived` until the consumer releases it.

    ready: done once the producer's work is. Page slices may have moved since, so consumers check `arrived`.
    lease: None for an input that came over no edge, or of an edge's end. source: as of `Ended`.

    A consumer may leave an input neither acquired nor released only while it waits for its own memory or time, never
    while it waits for another input of the request: the producer may be paused until then, and so never send that
    input.
    """

    request_id: str
    payload: Payload
    ready: Event
    lease: Lease | None = None
    source: str = "frontend"
    _acquired: bool = field(default=False, init=False)
    _released: bool = field(default=False, init=False)

    @property
    def acquired(self) -> bool:
        """Whether the consumer has acquired or released it; True for an input in host memory."""
        return self._acquired or self.lease is None

    @property
    def arrived(self) -> bool:
        """Whether work launched now may use the tensors. False for a while when a page slice moves."""
        return self.ready.done() and all(
            tensor.moved.done() for tensor in self.payload.tensors.values() if isinstance(tensor, PageSlice)
        )

    def acquire(self) -> None:
        """The consumer has memory for the input, which no longer counts against the edge's credit. Idempotent."""
        if self.lease is not None and not self._acquired:
            self._acquired = True
            self.lease.acquire()

    def release(self, after: Event) -> None:
        """The consumer is done with the input once `after` is done. Call it also for an input without tensors: until then
        its producer may be paused. Later calls have no effect."""
        self.acquire()
        if self.lease is not None and self.payload.tensors and not self._released:
            self._released = True
            self.lease.release(after)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the inputs from `source` (an edge, or `"frontend"`)."""

    request_id: str
    source: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget the request and free its resources. The stage produces nothing further for it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A consumer of the request is behind: start no new work for it. Work under way still produces output."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue a paused request."""

    request_id: str


Inbound = Open | Feed | Ended | Abort | Pause | Resume


@dataclass(slots=True, eq=False)
class Produced:
    """An output. Its tensors may be read once `ready` is done, and belong to the producer again once it is `free`. The
    orchestrator writes it (`add`, then `close`), the producer reads it.

    for_user: it is not an input of other stages, on any edge.
    """

    request_id: str
    payload: Payload
    ready: Event
    for_user: bool = False
    _refs: list[Ref] = field(default_factory=list, init=False)
    _closed: bool = field(default=False, init=False)

    def add(self, ref: Ref) -> None:
        """An edge took the payload."""
        self._refs.append(ref)

    def close(self) -> None:
        """No further edge takes the payload."""
        self._closed = True

    @property
    def released(self) -> bool:
        """Whether no consumer launches further reads of the payload. Launched reads may still run."""
        return self._closed and all(ref.released for ref in self._refs)

    @property
    def free(self) -> bool:
        """Whether the producer may reuse the payload's memory."""
        return self._closed and all(ref.freed for ref in self._refs)


@dataclass(frozen=True, slots=True)
class Done:
    """The stage has produced everything for the request. counts: totals for its usage (tokens, frames, ...).

    withheld: generated tokens that were not emitted, because a stop string ends in them.
    """

    request_id: str
    reason: str
    counts: dict[str, int]
    withheld: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The stage has given up the request and freed its resources."""

    request_id: str
    error: OmniError


Outbound = Produced | Done | Failed
