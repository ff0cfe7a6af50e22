"""The user's side of a request that runs in engines of other processes."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from omni.engine import EngineRequest
from omni.engine.request import SafeSink
from omni.errors import LostPeerError, OmniError


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """A request of an `EngineGroup`. lock: taken before that of the engines. places: of its stages, if they are several.

    parts: places whose engines have not ended it. awaited: stages with a wanted output that are not done. attempt: its number, from
    0; outputs of earlier attempts are dropped. started: whether the user was given an output. complete: whether all wanted outputs
    were given; it has ended when every engine has ended its part. lost: an engine's report on another one, which has yet to confirm
    it.
    """

    request: EngineRequest
    sink: SafeSink
    lock: threading.RLock = field(default_factory=threading.RLock)
    number: int = 0
    attempt: int = 0
    places: Mapping[str, str] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)
    started: bool = False
    complete: bool = False
    finished: bool = False
    lost: LostPeerError | None = None
    aborted: OmniError | None = None

    @property
    def part_id(self) -> str:
        return self.request.id if not self.attempt else f"{self.request.id}.{self.attempt}"
