"""Several children at a time, each with a limit for each of its tests."""

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .child import fork

Tell = Callable[[object], None]


@dataclass
class ChildOutcome:
    """Messages of a child, in order; `hung` is the test that took too long, `crashed` the one in which the child died."""

    said: list[dict[str, Any]] = field(default_factory=list)
    hung: str | None = None
    crashed: str | None = None


@dataclass
class ChildJob:
    """Work for a child. `limit` gives the seconds that a test may take, `then` hears of the end and may return more jobs."""

    work: Callable[[Tell], None]
    limit: Callable[[str], float]
    then: Callable[[ChildOutcome], Iterable["ChildJob"]]


class _Child:
    def __init__(self, job: ChildJob) -> None:
        self.job, self.outcome = job, ChildOutcome()
        self.pid, self.pipe = fork(job.work)
        self._text, self._test = b"", ""
        self._deadline = time.monotonic() + job.limit("")

    @property
    def late(self) -> bool:
        return time.monotonic() > self._deadline

    def read(self) -> bool:
        """Takes in what the child wrote; False when it is gone."""
        text = os.read(self.pipe, 1 << 16)
        *lines, self._text = (self._text + text).split(b"\n")
        for said in map(json.loads, lines):
            self.outcome.said.append(said)
            if "runs" in said:
                self._test = said["runs"]
                self._deadline = time.monotonic() + self.job.limit(self._test)
        return bool(text)

    def end(self) -> None:
        os.close(self.pipe)
        if self.late:
            self.outcome.hung = self._test
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        if status and not self.outcome.hung:
            self.outcome.crashed = self._test


def run(jobs: Iterable[ChildJob], at_once: int) -> None:
    """Runs all jobs, and those that they lead to before others."""
    with selectors.DefaultSelector() as selector:
        waiting, more, running = iter(jobs), list[ChildJob](), list[_Child]()
        while True:
            while len(running) < at_once and (job := more.pop() if more else next(waiting, None)):
                running.append(child := _Child(job))
                selector.register(child.pipe, selectors.EVENT_READ, child)
            if not running:
                return
            for child in _ended(selector, running):
                selector.unregister(child.pipe)
                running.remove(child)
                child.end()
                more += child.job.then(child.outcome)


def _ended(selector: selectors.BaseSelector, running: list[_Child]) -> Iterator[_Child]:
    gone = [key.data for key, _ in selector.select(timeout=0.5) if not key.data.read()]
    yield from gone
    yield from [child for child in running if child not in gone and child.late]
