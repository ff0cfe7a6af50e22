"""One request on its way through front end and engine."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished
from omni.errors import OmniError


@dataclass(frozen=True, slots=True)
class Started:
    """The engine has the request.

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
    """Delivers a request's events in order, and exactly one last one, whoever ends it: engine, front end or user.

    | state | changed by |
    |---|---|
    | preparing -> with the engine | the front-end thread, `start` |
    | either -> over | the engine's thread (`sink`), the front-end thread (`cancel`, it failed), any thread (`cancel`) |
    """

    def __init__(self, request_id: str, deliver: Deliver, on_over: Callable[[str], object]) -> None:
        self.id = request_id
        self._deliver = deliver
        self._on_over = on_over
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._over = False
        self._cancelled: OmniError | None = None

    @property
    def over(self) -> bool:
        return self._over

    def start(self, engine: Engine, request: EngineRequest, started: Started) -> None:
        """Hands the prepared request to the engine, unless it was cancelled in the meantime."""
        with self._lock:
            if self._over:
                return
            self._deliver(time.perf_counter(), started)
        engine.submit(request, self.sink)  # without the lock, which the sink takes: a closed engine refuses at once
        with self._lock:
            self._engine = engine
            cancelled = self._cancelled
        if cancelled is not None:
            engine.abort(self.id, cancelled)

    def sink(self, output: EngineOutput) -> None:
        """Takes what the engine gives."""
        with self._lock:
            if self._over:
                return
            self._over = isinstance(output, RequestFinished | RequestFailed)
            try:
                self._deliver(time.perf_counter(), output)
            finally:
                if self._over:
                    self._on_over(self.id)

    def cancel(self, error: OmniError) -> None:
        """Gives the request up wherever it is; its last event is `RequestFailed(error)`. A no-op if it is over."""
        with self._lock:
            if self._over:
                return
            self._over, self._cancelled = True, error
            self._deliver(time.perf_counter(), RequestFailed(error))
            if self._engine is not None:
                self._engine.abort(self.id, error)
        self._on_over(self.id)
