"""The error of a check: the broken promise of `omni.connector.base`."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

from omni.testing.contract import Contract

PATIENCE_SECONDS = 60.0
"""Seconds that a check waits before it fails; more for large payloads."""
IDLE_SECONDS = 15.0
"""Seconds that a receiver may stay busy after the end of all its payloads."""
WAIT_SECONDS = 10.0
MAX_QUERIES = 50_000
CONNECTOR = Contract("connector")
require = CONNECTOR.require


class Gate:
    """An event that the check completes.

    A connector's call that polls it until it is done fails the check: by the number of queries or by the time since the
    first one, both since the last `rest`.
    """

    def __init__(self) -> None:
        self.open = False
        self.rest()

    def rest(self) -> None:
        """No call is under way."""
        self._queries = 0
        self._since = 0.0

    def done(self) -> bool:
        if not self.open:
            now = time.monotonic()
            self._since = self._since or now
            self._queries += 1
            require(self._queries < MAX_QUERIES and now - self._since < WAIT_SECONDS, "no call waits for an event")
        return self.open


@contextmanager
def calling(call: str, *, opens: bool = False) -> Iterator[None]:
    """While entered, an exception is one that the contract does not allow: it becomes an AssertionError. So does a call of
    `time.sleep`, unless the call `opens` or closes something, when the engine serves no requests."""
    remedy = "let it return, also when there is nothing left to do and when it is called twice"
    with CONNECTOR.calling(call, remedy), nullcontext() if opens else _no_sleep(call):
        yield


@contextmanager
def _no_sleep(call: str) -> Iterator[None]:
    caller, sleep = threading.get_ident(), time.sleep

    def refuse(seconds: float) -> None:
        remedy = "return, and ask again in the next call: the engine's thread serves all requests"
        require(threading.get_ident() != caller, f"no call waits: {call} sleeps for {seconds} s: {remedy}")
        sleep(seconds)

    with patch.object(time, "sleep", refuse):
        yield
