"""One answer on its way: from the front end through the engine to its user."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished
from omni.errors import OmniError


@dataclass(frozen=True, slots=True)
class Started:
    """The request is prepared, and goes to the stages when there is a place.

    taken: when a front-end thread took it up (`time.perf_counter`).
    after_stop: of tokens in which a stop string ended the text, the text from that string on.
    """

    taken: float
    prompt_tokens: int
    after_stop: Callable[[Sequence[int]], str]


Event = Started | EngineOutput
Deliver = Callable[[float, Event], None]
"""Takes an event and when it happened (`time.perf_counter`). Called from any thread, one at a time; must be brief."""


class Ticket:
    """Delivers an answer's events in order, and exactly one last one, whoever ends it: engine, front end or user.

    | state | changed by |
    |---|---|
    | waiting -> handed over to the engine | whoever finds that it is next, `start` |
    | either -> over | the engine's thread (`sink`), the front end and the executor (`cancel`) |

    `on_over` is called once, without a lock, when the engine has been told of it as well.
    """

    def __init__(self, ticket_id: str, deliver: Deliver, on_over: Callable[["Ticket"], object]) -> None:
        self.id = ticket_id
        self._deliver = deliver
        self._on_over = on_over
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._starting = False
        self._over = False
        self._cancelled: OmniError | None = None

    @property
    def over(self) -> bool:
        return self._over

    def prepared(self, started: Started) -> None:
        """Delivers that; a no-op if it is over."""
        with self._lock:
            if not self._over:
                self._deliver(time.perf_counter(), started)

    def start(self, engine: Engine, request: EngineRequest) -> None:
        """Hands the prepared request to the engine, unless it was cancelled in the meantime."""
        with self._lock:
            if self._over:
                return
            self._starting = True
        engine.submit(request, self.sink)  # without the lock, which the sink takes: a closed engine refuses at once
        with self._lock:
            self._starting, self._engine = False, engine
            cancelled = self._cancelled
        if cancelled is not None:
            engine.abort(self.id, cancelled)
            self._on_over(self)

    def sink(self, output: EngineOutput) -> None:
        """Takes what the engine gives."""
        ended = False
        try:
            with self._lock:
                if self._over:
                    return
                self._over = ended = isinstance(output, RequestFinished | RequestFailed)
                self._deliver(time.perf_counter(), output)
        finally:
            if ended:
                self._on_over(self)

    def cancel(self, error: OmniError) -> None:
        """Gives the request up wherever it is; its last event is `RequestFailed(error)`. A no-op if it is over."""
        with self._lock:
            if self._over:
                return
            self._over, self._cancelled = True, error
            starting = self._starting
            self._deliver(time.perf_counter(), RequestFailed(error))
            if self._engine is not None:
                self._engine.abort(self.id, error)
        if not starting:
            # The place of one that is being handed over is free when the engine has heard that it is not.
            self._on_over(self)
