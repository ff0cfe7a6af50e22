"""Queries to an engine's process. The answers arrive among its other messages."""

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import msgspec

from omni.process.messages import Answer, Check, Connect, GetState
from omni.sampling import SamplingParams

_KEPT_CHECKS = 1024


class EngineQueries:
    """Numbers queries, sends them, and passes each answer to its asker. Called by any thread; `refuse` and `close` by the one that
    takes the messages."""

    def __init__(self, send: Callable[[Check | GetState | Connect, int | None], object]) -> None:
        """send: a query and a descriptor for its process. Raises TypeError for values that cannot be sent; the end of the process
        is no error."""
        self._send = send
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, Future[Answer | None]] = {}
        self._refused = False

    @property
    def open(self) -> bool:
        """Whether an asker waits."""
        return bool(self._answers)

    def ask(self, query: Callable[[int], Check | GetState]) -> Answer | None:
        """Waits for the answer; None if the process ended."""
        number, answer = self.post(query)
        try:
            return answer.result()
        finally:
            self._answers.pop(number, None)

    def post(
        self, query: Callable[[int], Check | GetState | Connect], extra: int | None = None
    ) -> "tuple[int, Future[Answer | None]]":
        """Sends the message that `query` makes of the query's number. Returns that and the future answer. Raises as `send`."""
        answer: Future[Answer | None] = Future()
        with self._lock:
            number = next(self._numbers)
            if self._refused:
                answer.set_result(None)
                return number, answer
            self._answers[number] = answer
        try:
            self._send(query(number), extra)
        except BaseException:
            self._answers.pop(number, None)
            raise
        return number, answer

    def answer(self, answer: Answer) -> None:
        self._settle(answer.number, answer)

    def refuse(self) -> None:
        """The process has ended: further queries are answered with None at once."""
        with self._lock:
            self._refused = True

    def close(self) -> None:
        """Called after `refuse`: answers the open queries with None."""
        for number in list(self._answers):
            self._settle(number, None)

    def _settle(self, number: int, answer: Answer | None) -> None:
        # Several threads may end a query at once: by its answer, by `close`, or since its asker was interrupted.
        waiting = self._answers.pop(number, None)
        if waiting is not None:
            waiting.set_result(answer)


class CheckedParameters:
    """A cache of sampling parameters, without seeds, that an engine has accepted. A request's parameters are checked twice, when it
    is submitted and when it is prepared, and many requests have equal ones. Thread-safe."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._lock = threading.Lock()

    def __contains__(self, sampling: Mapping[str, SamplingParams]) -> bool:
        return _key_of(sampling) in self._keys

    def add(self, sampling: Mapping[str, SamplingParams]) -> None:
        key = _key_of(sampling)
        if key is not None:
            with self._lock:
                if len(self._keys) == _KEPT_CHECKS:
                    self._keys.clear()
                self._keys.add(key)


def _key_of(sampling: Mapping[str, SamplingParams]) -> bytes | None:
    """A key of the parameters without their seeds, since most requests have a seed of their own. None if they contain other objects
    than numbers and texts, such as arguments of plugins."""
    try:
        return msgspec.msgpack.encode(
            [(stage, msgspec.structs.replace(params, seed=None)) for stage, params in sampling.items()]
        )
    except TypeError:
        return None
