"""What goes into a stage worker's inbox and comes out of its outbox. One request's messages keep their order."""

from dataclasses import dataclass

import msgspec

from omni.device import Event
from omni.errors import OmniError
from omni.payload import PageSlice, Payload
from omni.sampling import NO_RULES, HostRules, SamplingParams
from omni.stage.lease import Hold, Lease


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


@dataclass(frozen=True, slots=True)
class Feed:
    """One input. Device tensors may be used once `arrived`, and `lease` (if any) is released after their last use.

    ready: done once the producer's work is. Page slices may have moved since: that is why consumers ask for `arrived`.
    """

    request_id: str
    payload: Payload
    ready: Event
    lease: Lease | None = None

    @property
    def arrived(self) -> bool:
        """Whether work that is launched now may use the tensors. A page slice that moves makes it false for a while."""
        return self.ready.done() and all(
            tensor.moved.done() for tensor in self.payload.tensors.values() if isinstance(tensor, PageSlice)
        )


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


class Produced(msgspec.Struct, frozen=True):
    """One output. Its tensors may be read once `ready` is done and stay valid until `hold.free`.

    for_user: it is no input of another stage, whatever edges there are.
    """

    request_id: str
    payload: Payload
    ready: Event
    hold: Hold = msgspec.field(default_factory=Hold)
    for_user: bool = False


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
