"""The messages of a stage worker's inbox and outbox, and the lifetime of the payload's memory that two of them carry.

One request's messages keep their order. A payload's memory is its producer's, from `Produced` to the last `Feed` made of it:

| a payload is | when | by | asked by |
|---|---|---|---|
| sent | an edge took it: its connector made a `Ref`, and it counts against the edge's `Credit` | `Produced.add` | |
| closed | no further edge takes it | `Produced.close` | |
| acquired | its consumer has room for each input made of it: it no longer counts | `Feed.acquire` | `Credit` |
| released | no work that reads it is launched any more; its rows move no more | `Feed.release`, `Connector.abort` | the producer |
| free | what was launched before is over too: the memory is the producer's again | events of the releases | the producer |

Three objects stand for a payload under way: the connector's `Ref`, which crosses the edge, the consumer's `Lease`, and the
producer's `Credit` (`omni.engine.route`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from omni.connector import Connector, Ref
from omni.device import COMPLETED, Event
from omni.errors import OmniError
from omni.payload import PageSlice, Payload
from omni.sampling import NO_RULES, HostRules, SamplingParams

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Open:
    """A request will use this stage.

    inputs: the edges (or `"frontend"`) that will feed it.
    rank: priority and arrival number; the lower is served first. Unique among the engine's requests.
    cache_salt: requests of different salts share nothing that is cached.
    sample_index: which sample of what was asked for this is: with one seed, each draws other tokens.
    rules: what only the host can tell of its tokens here.
    """

    request_id: str
    sampling: SamplingParams
    inputs: frozenset[str]
    rank: tuple[int, int] = (0, 0)
    cache_salt: str = ""
    sample_index: int = 0
    rules: HostRules = NO_RULES


class Lease:
    """A consumer's claim on one received payload, shared by the inputs that an adapter made of it. The payload is released once
    every input is, behind the last of their events: they are read on one stream, so it covers them all.
    """

    def __init__(
        self, connector: Connector, ref: Ref, inputs: int, on_acquired: Callable[[], None] = lambda: None
    ) -> None:
        """inputs: how many there are; with none the payload is released at once. on_acquired: called once."""
        self._connector = connector
        self._ref = ref
        self._unacquired = self._unreleased = inputs
        self._on_acquired = on_acquired
        self._after: Event = COMPLETED
        if not inputs:
            on_acquired()
            self._end()

    def acquire(self) -> None:
        """One more input is acquired."""
        self._unacquired -= 1
        if not self._unacquired:
            self._on_acquired()

    def release(self, after: Event) -> None:
        """One more input is released, and not read after `after`."""
        self._unreleased -= 1
        if after is not COMPLETED:
            self._after = after
        if not self._unreleased:
            self._end()

    def _end(self) -> None:
        try:
            self._connector.release(self._ref, self._after)
        except Exception:
            # No stage must fail for it: what is lost is the payload's memory.
            _log.exception("the connector failed to release a payload")


@dataclass(slots=True, eq=False)
class Feed:
    """One input. Its device tensors may be used once it has `arrived`, until the consumer releases it.

    ready: done once the producer's work is. Page slices may have moved since: that is why consumers ask for `arrived`.
    lease: None for an input in host memory, which nobody waits to have back.

    A consumer may leave an input neither acquired nor released only while it waits for room or time of its own, never while it
    waits for another input of the request: the producer may be paused until then, and the other input with it.
    """

    request_id: str
    payload: Payload
    ready: Event
    lease: Lease | None = None
    _acquired: bool = field(default=False, init=False)

    @property
    def arrived(self) -> bool:
        """Whether work that is launched now may use the tensors. A page slice that moves makes it false for a while."""
        return self.ready.done() and all(
            tensor.moved.done() for tensor in self.payload.tensors.values() if isinstance(tensor, PageSlice)
        )

    def acquire(self) -> None:
        """The consumer has room for the input: it no longer counts against the edge's credit. Idempotent."""
        if self.lease is not None and not self._acquired:
            self._acquired = True
            self.lease.acquire()

    def release(self, after: Event) -> None:
        """The consumer is done with the input when `after` is. Once only."""
        self.acquire()
        if self.lease is not None:
            self.lease.release(after)


@dataclass(frozen=True, slots=True)
class Ended:
    """No further input will come from `source` (an edge, or `"frontend"`)."""

    request_id: str
    source: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget the request and free what it holds. Nothing further is produced for it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A consumer of the request is behind: start no new work for it. What is under way still comes out."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a paused request."""

    request_id: str


Inbound = Open | Feed | Ended | Abort | Pause | Resume


@dataclass(slots=True, eq=False)
class Produced:
    """One output. Its tensors may be read once `ready` is done, and are the producer's again once it is `free`. The orchestrator
    writes it (`add`, then `close`), the producer reads it.

    for_user: it is no input of another stage, whatever edges there are.
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
        """No consumer launches anything more that reads the payload; what was launched may still be running."""
        return self._closed and all(ref.released for ref in self._refs)

    @property
    def free(self) -> bool:
        """The producer may reuse the payload's memory."""
        return self._closed and all(ref.freed for ref in self._refs)


@dataclass(frozen=True, slots=True)
class Done:
    """The stage has produced everything for the request. `counts` are totals for its usage (tokens, frames, ...).

    held: generated tokens that went to nobody, since the text ends within them (a stop string).
    """

    request_id: str
    reason: str
    counts: dict[str, int]
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The stage gave the request up and has freed what it held."""

    request_id: str
    error: OmniError


Outbound = Produced | Done | Failed
